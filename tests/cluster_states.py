"""Moments of a cluster, made up in the tests: jobs whose goodput is a known function of their devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.state import State

ELASTIC = Job(name="elastic", epochs=1, adapts=frozenset({"devices", "batch"}))


@dataclass
class Known:
    """An outlook: ``curve(type, devices)`` is the goodput, ``left`` the progress to the end."""

    curve: Callable[[int, Array], Array]
    most: int = 64
    left: float = math.nan

    def goodput(self, device_type: int, most: int) -> Array:
        counts = np.arange(most + 1, dtype=float)
        return np.where(counts > 0, self.curve(device_type, np.maximum(counts, 1)), 0.0)

    def max_devices(self) -> int:
        return self.most

    def seconds_left(self, device_type: int, most: int) -> Array:
        with np.errstate(divide="ignore"):
            return self.left / self.goodput(device_type, most)

    def relative_spread(self) -> float:
        return 0.0


def state(fleet: str, outlooks: Sequence[Known], job: Job | Sequence[Job] = ELASTIC, **others: object) -> State:
    """A moment an hour after the start at which all jobs came and wait; ``others`` are fields of the state."""
    count, cluster = len(outlooks), Fleet.named(fleet)
    jobs = [replace(job, name=f"job {index}") for index in range(count)] if isinstance(job, Job) else list(job)
    usual: dict[str, object] = {
        "time_s": 3600.0,
        "round_s": 60.0,
        "capacity": np.array([group.devices for group in cluster.groups]),
        "arrival_s": np.zeros(count),
        "requested": np.array([each.devices for each in jobs], dtype=np.int64),
        "devices": np.zeros(count, np.int64),
        "type_index": np.full(count, -1),
        "attained_s": np.zeros(count),
        "run_s": np.zeros((count, len(cluster.groups))),
        "restarts": np.zeros(count, np.int64),
    }
    return State(fleet=cluster, jobs=jobs, outlooks=outlooks, **{**usual, **others})  # type: ignore[arg-type]
