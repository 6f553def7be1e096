"""Goodput of many jobs, asked at once: the same as of each job alone."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.array_types import Array, Ints
from paceline.scheduling.speeds.goodput import ENVELOPE_FROM, BatchLimits, Noise, StepSeconds, best_batches
from paceline.scheduling.speeds.goodput_tables import (
    MissingTable,
    SharedGoodput,
    goodput_on,
    goodput_tables,
    shared_outlook,
)

LIMITS, PER_NODE = BatchLimits(8, 512, 4, 32), 4


class Steps(StepSeconds):
    """Steps that take longer on more nodes."""

    def step_s(self, nodes: Ints, devices: Ints, local: Ints) -> tuple[Array, Array]:
        compute = 0.1 + 0.01 * local
        return compute + 0.02 * nodes, compute


class Learner:
    """Outlook whose goodput is known once it was kept."""

    def __init__(self, times: Steps, variance: float) -> None:
        self.times, self.noise, self.kept = times, Noise(1.0, variance), np.zeros(0)

    def goodput(self, device_type: int, most: int) -> Array:
        return self.kept[: most + 1] if len(self.kept) else -np.ones(most + 1)

    def missing_goodput(self, device_type: int, most: int) -> MissingTable | None:
        def keep(goodput: Array) -> None:
            self.kept = np.append(0.0, goodput)

        return None if len(self.kept) > most else MissingTable(self.times, LIMITS, PER_NODE, most, self.noise, keep)

    def max_devices(self) -> int:
        return 64

    def seconds_left(self, device_type: int, most: int) -> Array:
        return np.ones(most + 1)

    def relative_spread(self) -> float:
        return 0.0


@pytest.mark.parametrize("count", [2, 3 * ENVELOPE_FROM])
def test_it_is_the_goodput_of_each_job_alone(count: int) -> None:
    times, rng = Steps(), np.random.default_rng(count)
    jobs = [Learner(times, float(variance)) for variance in [0.0, *rng.uniform(0, 50, count - 1)]]
    sizes = rng.integers(1, 40, count).tolist()
    asked = [(job, 0, most) for job, most in zip(jobs, sizes, strict=True)]
    for job, most, table in zip(jobs, sizes, goodput_tables(asked), strict=True):
        devices = np.arange(1, most + 1)
        alone = best_batches(times, LIMITS, job.noise, -(-devices // PER_NODE), devices)[0]
        assert table.tolist() == pytest.approx([0.0, *alone])
    assert (goodput_tables([(Learner(Steps(), 1.0), 0, 4)])[0] == -1).all(), "one job alone computes its own table"


class Sharer(Learner):
    """Outlook that shares its goodput with jobs of its kind, and needs a least number of devices."""

    def __init__(self, times: Steps, variance: float, least: int, kind: str | None) -> None:
        super().__init__(times, variance)
        self.least_devices, self.kind = least, kind

    def shared_goodput(self, device_type: int) -> SharedGoodput | None:
        return None if device_type == 2 else SharedGoodput(self.times, LIMITS, PER_NODE, 1.0 + device_type)

    def goodput(self, device_type: int, most: int) -> Array:
        counts = np.arange(1, most + 1)
        table = np.append(0.0, best_batches(self.times, LIMITS, self.noise, -(-counts // PER_NODE), counts)[0])
        return np.where(np.arange(most + 1) < self.least_devices, 0.0, table * (1.0 + device_type))

    def missing_goodput(self, device_type: int, most: int) -> MissingTable | None:
        return None


def test_jobs_of_a_kind_get_the_goodput_that_each_would_say() -> None:
    """Kinds of many, of few, and none; one type that must be asked job by job; one job whose gradients are all noise."""
    times, rng = Steps(), np.random.default_rng(7)
    jobs = [Sharer(times, float(rng.uniform(0, 50)), index % 4, "ab"[index > 20] if index % 5 else None) for index in range(30)]
    jobs += [Sharer(times, 1.0, 1, "c") for _ in range(9)]
    jobs[-1].noise = Noise(0.0, 1.0)
    sizes = [np.unique(rng.integers(1, 40, 6)) for _ in range(3 * len(jobs))]
    asked = [(job, kind, sizes[3 * index + kind]) for index, job in enumerate(jobs) for kind in range(3)]
    alone = [job.goodput(kind, int(legal[-1])) for job, kind, legal in asked]
    each = np.concatenate([table[legal] for table, (*_, legal) in zip(alone, asked, strict=True)])
    assert goodput_on(*zip(*asked, strict=True)).tolist() == pytest.approx(each.tolist()) and not len(goodput_on([], [], []))
    for table, found in zip(alone, goodput_tables([(job, kind, int(legal[-1])) for job, kind, legal in asked]), strict=True):
        assert found.tolist() == pytest.approx(table.tolist())
    assert shared_outlook(jobs[0]) is None and shared_outlook(jobs[1]) is jobs[1]
