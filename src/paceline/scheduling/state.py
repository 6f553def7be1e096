"""What a policy sees, and what it answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from paceline.array_types import Array, Ints
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.placement import Rule


class Outlook(Protocol):
    """What is believed of a job: measured, predicted, or learned as it runs."""

    def goodput(self, device_type: int, most: int) -> Array:
        """Progress a second on 0 to ``most`` devices of the type, packed on as few nodes as can be; shape (most + 1,).

        Progress is in samples (or steps of the job's own first batch) that count as much as those of the smallest batch
        (Pollux, OSDI 2021, equation 5). 0 where it cannot run.
        """
        ...

    def max_devices(self) -> int:
        """Beyond which nothing is believed of it yet, or its limits end."""
        ...

    def seconds_left(self, device_type: int, most: int) -> Array:
        """Seconds to the end on 0 to ``most`` devices; infinite where it cannot run, NaN where nobody knows the work left."""
        ...

    def relative_spread(self) -> float:
        """Half the width of the 80 % range of its goodput, beside the goodput, where least is known of it; 0: measured."""
        ...


@dataclass(frozen=True, kw_only=True)
class State:
    """A moment of a cluster. Arrays have one entry a job, in the order of ``jobs``, which is that of arrival.

    Attributes:
        time_s: since the trace's start. ``round_s``: between decisions; 0: at every event.
        capacity: devices of each type that are there now, held or free; shape (types,).
        devices: held now; 0: it waits. ``type_index``: of the devices held; -1: none.
        attained_s: device-seconds held so far. ``run_s``: seconds on each type, of shape (jobs, types).
        restarts: how often it was started again or resized.
        outlooks: what is believed of each job.
        restart_s: what a start or a resize costs: one number, or one a job.
        restarting_s: what is left of it for each job that started a moment ago; 0: it works.
        memory: what this policy answered as ``memory`` the last time; None at first.
        curves: what each job has reported so far, the oldest first: a metric of which more is better, such as an accuracy or
            the negative loss; without entries where jobs report none.
    """

    time_s: float
    round_s: float
    fleet: Fleet
    capacity: Ints
    jobs: Sequence[Job]
    arrival_s: Array
    requested: Ints
    devices: Ints
    type_index: Ints
    attained_s: Array
    run_s: Array
    restarts: Ints
    outlooks: Sequence[Outlook]
    restart_s: Array = field(default_factory=lambda: np.array(30.0))
    restarting_s: Array = field(default_factory=lambda: np.array(0.0))
    memory: Any = None
    curves: Sequence[Array] = ()

    def __post_init__(self) -> None:
        for name in ("restart_s", "restarting_s"):  # one number stands for every job
            value = np.asarray(getattr(self, name), float)
            if value.shape != (len(self.jobs),):
                object.__setattr__(self, name, np.broadcast_to(value, (len(self.jobs),)))

    @property
    def ran_s(self) -> Array:
        """Seconds in which each job held any devices."""
        return np.asarray(self.run_s.sum(axis=1))

    @property
    def age_s(self) -> Array:
        """Seconds since each job's arrival."""
        return self.time_s - self.arrival_s


@dataclass(frozen=True, kw_only=True)
class Decision:
    """How many devices of which type each job gets until the next decision.

    Attributes:
        devices: 0: it waits. ``type_index``: of the fleet's types; any value where a job waits.
        order: jobs in the order in which they are placed; None: as they arrived.
        rule: how they are placed.
        repack: whether all jobs are placed anew, each on as few nodes as can be, and jobs that keep their devices may move.
        wake_s: when the policy wants to decide again, though nothing happens.
        holds_until_s: before it the policy would decide the same, while no job comes, ends or changes its speed and no node
            goes or comes; rounds till then are simulated without asking it. By default nothing is promised.
        memory: what the next ``State`` brings back.
        reasons: why, by job, where the policy can say it. ``note``: what a reader must know of the whole decision.
        removed: jobs that leave for good before their end, by job with the reason: admission was refused, or it learns no more.
    """

    devices: Ints
    type_index: Ints
    order: Sequence[int] | None = None
    rule: Rule = "most_free"
    repack: bool = False
    wake_s: float = math.inf
    holds_until_s: float = -math.inf
    memory: Any = None
    reasons: Mapping[int, str] = field(default_factory=dict)
    note: str = ""
    removed: Mapping[int, str] = field(default_factory=dict)


Policy = Callable[[State], Decision]
"""A pure function: the same state gives the same decision, and the state is left as it was."""

__all__ = ["Decision", "Outlook", "Policy", "State"]
