"""Input and output of a policy: the state of a cluster, and a decision on its devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from paceline.array_types import Array, Ints
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.placement import Placement, Rule


class Outlook(Protocol):
    """Expected speed of a job: measured, predicted, or learned as it runs."""

    def goodput(self, device_type: int, most: int) -> Array:
        """Return the progress a second on 0 to ``most`` devices of a type, on as few nodes as possible; shape (most + 1,).

        Progress counts in samples, or steps of the first batch, weighted by their efficiency relative to the smallest batch
        (Pollux, OSDI 2021, equation 5). 0: it cannot run.
        """
        ...

    def max_devices(self) -> int:
        """Return the largest number of devices with a known speed, within the job's limits."""
        ...

    def seconds_left(self, device_type: int, most: int) -> Array:
        """Return the seconds to the end on 0 to ``most`` devices; inf if it cannot run, NaN if remaining work is unknown."""
        ...

    def relative_spread(self) -> float:
        """Return half the width of the 80 % range of the goodput, relative to it, at the least certain size; 0 if measured."""
        ...


@dataclass(frozen=True, slots=True)
class FixedSpeeds:
    """Outlooks of rigid jobs whose expected speed never changes, so that a policy need not ask each of them.

    Attributes:
        rate: progress a second on the devices asked for; 0: it may not or cannot run there; NaN: ask the outlook of this job;
            shape (jobs, types).
        left: remaining progress; NaN: unknown; shape (jobs,).
        spread: relative spread of the goodput; shape (jobs,).
    """

    rate: Array
    left: Array
    spread: Array

    def of(self, rows: Ints) -> FixedSpeeds:
        """Return the speeds of some jobs."""
        return FixedSpeeds(self.rate[rows], self.left[rows], self.spread[rows])


@dataclass(frozen=True, slots=True)
class Leaving:
    """Devices that a preempted job gives back at ``until_s``. ``job``: its index in the state; -1: not among the jobs."""

    placement: Placement
    type_index: int
    until_s: float
    job: int = -1

    @property
    def devices(self) -> int:
        """Number of devices."""
        return sum(count for _, count in self.placement)


@dataclass(frozen=True, kw_only=True)
class State:
    """State of a cluster at one moment. Arrays have one entry per job, in the order of ``jobs``, which is that of arrival.

    Attributes:
        time_s: seconds since the start of the trace.
        round_s: seconds between decisions; 0: decisions follow events.
        capacity: devices of each type that are up, free or not; shape (types,).
        arrival_s: arrival of each job. ``requested``: devices asked for.
        devices: devices held; 0: the job waits. ``type_index``: type of the devices held; -1: none.
        attained_s: device-seconds held so far. ``run_s``: seconds on each type, of shape (jobs, types).
        restarts: number of restarts and resizes.
        outlooks: expected speed of each job.
        restart_s: cost of a start or a resize: one number, or one per job.
        restarting_s: remaining cost of a start in progress; 0: the job works.
        memory: ``memory`` of this policy's previous decision; None at first.
        curves: metric of each job so far, oldest first; higher is better. Losses: negative. Empty: no job reports one.
        fixed: rigid jobs whose expected speed never changes, in bulk; None: ask each outlook.
        held_s: seconds since the present start of each job that holds devices.
        placements: placement of each job. ``free``: free devices of each node that is up. Empty: unknown.
        leaving: devices that preempted jobs still hold. They are part of ``capacity`` and no longer of ``jobs``.
        loads: used fractions of each device that jobs share, by node.
        ended, ended_ran_s: number of jobs that ran and are over, and their seconds on devices.
        ended_ran_squared: sum of the squares of these seconds.
        withheld: devices of each type that jobs hold which the policy does not see; beyond ``capacity``.
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
    fixed: FixedSpeeds | None = None
    held_s: Array = field(default_factory=lambda: np.array(0.0))
    placements: Sequence[Placement] = ()
    free: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    leaving: Sequence[Leaving] = ()
    loads: Mapping[int, Sequence[float]] = field(default_factory=dict)
    ended: int = 0
    ended_ran_s: float = 0.0
    ended_ran_squared: float = 0.0
    withheld: Ints = field(default_factory=lambda: np.zeros(1, np.int64))

    def __post_init__(self) -> None:
        for name in ("restart_s", "restarting_s", "held_s"):  # one number stands for every job
            value = np.asarray(getattr(self, name), float)
            if value.shape != (len(self.jobs),):
                object.__setattr__(self, name, np.broadcast_to(value, (len(self.jobs),)))
        if self.fixed is not None and len(self.fixed.left) != len(self.jobs):
            object.__setattr__(self, "fixed", None)  # those of other jobs

    @property
    def ran_s(self) -> Array:
        """Seconds in which each job held devices."""
        return np.asarray(self.run_s.sum(axis=1))

    @property
    def age_s(self) -> Array:
        """Seconds since each job's arrival."""
        return self.time_s - self.arrival_s

    def part(self, rows: Ints, capacity: Ints, free: Ints | None = None) -> State:
        """Return the state of some jobs and devices. The devices of the others are withheld.

        Args:
            rows: indices of the jobs, ascending.
            free: free devices of each node; None: as before.
        """
        of_rows: dict[str, Any] = {name: getattr(self, name)[rows] for name in _BY_JOB}
        for name in ("curves", "placements"):
            if len(values := getattr(self, name)):
                of_rows[name] = [values[row] for row in rows]
        return replace(
            self,
            capacity=capacity,
            withheld=self.withheld + self.capacity - capacity,
            free=self.free if free is None else free,
            jobs=[self.jobs[row] for row in rows],
            outlooks=_Part(self.outlooks, rows),
            leaving=tuple(replace(leaving, job=-1) for leaving in self.leaving),
            fixed=self.fixed.of(rows) if self.fixed else None,
            **of_rows,
        )


_BY_JOB = (
    "arrival_s",
    "requested",
    "devices",
    "type_index",
    "attained_s",
    "run_s",
    "restarts",
    "restart_s",
    "restarting_s",
    "held_s",
)
"""Arrays of a state with one entry per job."""


class _Part(Sequence[Outlook]):
    """Outlooks of some of the jobs, created on access."""

    def __init__(self, outlooks: Sequence[Outlook], rows: Ints) -> None:
        self._outlooks, self._rows = outlooks, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Outlook:  # type: ignore[override]
        return self._outlooks[int(self._rows[index])]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Number and type of devices of each job until the next decision.

    Attributes:
        devices: devices of each job; 0: it waits.
        type_index: type of the devices; ignored for jobs that wait.
        order: jobs in the order of placement; None: in order of arrival.
        rule: rule of placement. ``placements``: placements that the policy chose itself, by job.
        repack: place all jobs again, each on as few nodes as possible, so that jobs may move though they keep their size.
        wake_s: latest time of the next decision.
        holds_until_s: time until which the decision would be the same, unless a job arrives, ends or changes its speed, or a
            node fails or returns. The simulator skips rounds until then. By default it skips none.
        memory: value that the next ``State`` returns to the policy.
        reasons: reason by job, where there is one, of its devices or of its wait. ``note``: remark on the whole decision.
        removed: jobs that leave for good before their end, with the reason: at once, or at the end of their grace.
        preempted: running jobs that lose their devices for a waiting one, with that one.
        grace_s: seconds for which a job that the decision stops still holds its devices, where that is not its own grace.
    """

    devices: Ints
    type_index: Ints
    order: Sequence[int] | None = None
    rule: Rule = "fewest_nodes"
    placements: Mapping[int, Placement] = field(default_factory=dict)
    repack: bool = False
    wake_s: float = math.inf
    holds_until_s: float = -math.inf
    memory: Any = None
    reasons: Mapping[int, str] = field(default_factory=dict)
    note: str = ""
    removed: Mapping[int, str] = field(default_factory=dict)
    preempted: Mapping[int, int] = field(default_factory=dict)
    grace_s: Mapping[int, float] = field(default_factory=dict)


Policy = Callable[[State], Decision]
"""Pure function: equal states give equal decisions, and the state is not changed."""
