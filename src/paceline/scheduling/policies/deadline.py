"""Policy of deadlines with admission control (ElasticFlow, ASPLOS 2023, sections 4.1 to 4.3).

Every admitted job has a minimum satisfactory share: the fewest devices over time that meet its deadline. A new job is admitted
if all shares fit, and otherwise turned away with the reason. Unshared devices go where they save the most device-time later.
Unlike in the published simulator, time has no slots, simultaneous arrivals are judged one by one, and a size is kept if a
change would not repay its restart.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile

import numpy as np

from paceline.array_types import Ints
from paceline.scheduling.policies.solvers.deadline_shares import FreeDevices, SharePlan, SpeedTable, least_share, steady_share
from paceline.scheduling.policies.solvers.sizes import known_seconds, one_type
from paceline.scheduling.speeds.goodput_tables import goodput_tables, shared_outlook
from paceline.scheduling.state import Decision, State

HORIZON_S = 600.0
"""Time within which a resize must repay its restart."""

WAKE_S = 30.0
"""Least time between two decisions without events. A job ahead of its share postpones its growth."""


@dataclass(slots=True)
class _Candidate:
    """Job in the admission. ``work``: in units of its speeds.

    ``margin_s``: time reserved for restarts before its deadline.
    """

    index: int
    speeds: SpeedTable
    work: float
    deadline_s: float
    margin_s: float
    held: int
    admitted: bool
    plan: SharePlan = field(default_factory=SharePlan)

    def share(self, free: FreeDevices, steady: bool = False) -> SharePlan:
        """The job's share of the free devices."""
        if steady:
            return steady_share(free, self.speeds, self.work, self.deadline_s, self.margin_s, self.held)
        return least_share(free, self.speeds, self.work, self.deadline_s - self.margin_s, self.held)


def deadline(state: State, horizon_s: float = HORIZON_S, together: bool = False) -> Decision:
    """Serve minimum shares first, then distribute the remaining devices, also to jobs without a deadline.

    Args:
        horizon_s: time within which a resize must repay its restart.
        together: admit jobs that arrive at one decision all or none (ElasticFlow's simulator).

    Raises:
        UserError: unknown remaining work of a job, or several device types.
    """
    capacity = one_type(state, "deadline", ("max_min", "sia"))
    known = frozenset[str](state.memory or ())
    most = state.fleet.groups[0].devices
    tables = goodput_tables([(outlook, 0, max(0, min(most, outlook.max_devices()))) for outlook in state.outlooks])
    speeds = SpeedTable.of_all(tables)
    jobs = [_candidate(state, index, table, state.jobs[index].name in known) for index, table in enumerate(speeds)]
    due = sorted((job for job in jobs if job.deadline_s < math.inf), key=lambda job: job.deadline_s)
    removed = _admit(due, state.time_s, capacity, together)
    stay = [job for job in jobs if job.index not in removed]
    devices = np.zeros(len(jobs), np.int64)
    for job in stay:
        devices[job.index] = job.plan.at(state.time_s)
    left = capacity - int(devices.sum())
    _leftovers(stay, devices, state, left, horizon_s)
    moments = [end for job in stay for _, end, _ in job.plan.stretches[:1]]
    moments += [start for job in stay for start, _, _ in job.plan.stretches[:1] if start > state.time_s]
    order = np.argsort(-devices, kind="stable").tolist()
    return Decision(
        devices=devices,
        type_index=np.zeros(len(jobs), np.int64),
        order=order,
        rule="fewest_nodes",
        wake_s=max(min(moments, default=math.inf), state.time_s + WAKE_S),
        memory=tuple(state.jobs[job.index].name for job in stay),
        removed=removed,
    )


def _candidate(state: State, index: int, speeds: SpeedTable, admitted: bool) -> _Candidate:
    size, fastest = (int(speeds.sizes[-1]), float(speeds.speeds[-1])) if len(speeds.sizes) else (0, 0.0)
    shared = shared_outlook(state.outlooks[index])
    progress = shared.progress_left() if shared and fastest else math.nan
    seconds = float(known_seconds(state, index, 0, size)[size]) if math.isnan(progress) else progress / fastest
    work = seconds * fastest if fastest > 0 else 0.0
    margin = float(state.restart_s[index]) * (1 if state.devices[index] else 2)
    return _Candidate(index, speeds, work, state.jobs[index].deadline_s, margin, int(state.devices[index]), admitted)


def _admit(due: list[_Candidate], now: float, capacity: int, together: bool) -> Mapping[int, str]:
    """Plan in the order of deadlines. Turn away new jobs that would be late or make others late.

    The least shares decide the admission. If all jobs could keep their sizes instead, they do.
    """
    removed: dict[int, str] = {}
    admission = _DeadlinePlan(due, now, capacity)
    while True:
        late = admission.plan()
        if late is None:
            least = [job.plan for job in due]
            if _DeadlinePlan([job for job in due if job.index not in removed], now, capacity).plan(steady=True):
                for job, plan in zip(due, least, strict=True):
                    job.plan = plan
            return removed
        fresh = [job for job in admission.fresh if job.deadline_s <= late.deadline_s]
        if not fresh:
            if not admission.drop_margins(late.deadline_s):  # it runs on remaining devices
                late.plan = SharePlan()
                due.remove(late)
                admission.skip()
            continue
        if together:
            gone, reason = admission.fresh, "not all jobs that came with it fit"
        else:
            alone = [job for job in fresh if not job.share(FreeDevices([now], [capacity])).in_time]
            gone = alone[:1] or [max(fresh, key=lambda job: job.plan.device_s)]
            reason = "its deadline is too soon for all devices" if alone else "what others were promised leaves it too little"
        removed |= {job.index: reason for job in gone}
        admission = _DeadlinePlan([job for job in due if job.index not in removed], now, capacity)


class _DeadlinePlan:
    """Plan of jobs by earliest deadline. After a change it continues from the first job that the change concerns.

    Args:
        due: jobs by deadline.

    Attributes:
        fresh: jobs that are not admitted yet.
    """

    def __init__(self, due: list[_Candidate], now: float, capacity: int) -> None:
        self._due, self._place = list(due), 0
        self._free = FreeDevices([now], [capacity])
        self._certain, self._free_there = 0, self._free.copy()  # jobs before it keep no margin
        self.fresh = [job for job in due if not job.admitted]

    def plan(self, steady: bool = False) -> _Candidate | None:
        """Share devices, and return the first job that would be late, or None."""
        for place in range(self._place, len(self._due)):
            job = self._due[place]
            job.plan = job.share(self._free, steady)
            if not job.plan.in_time:
                self._place = place
                return job
            self._free.take(job.plan)
        self._place = len(self._due)
        return None

    def drop_margins(self, deadline_s: float) -> bool:
        """Give up the time for restarts of jobs that are due by then. Return False if no job has any."""
        later = takewhile(lambda job: job.deadline_s <= deadline_s, islice(self._due, self._certain, None))
        ahead = [job for job in later if job.margin_s]
        for job in ahead:
            job.margin_s = 0.0
        if ahead:
            self._place, self._free = self._certain, self._free_there.copy()
        return bool(ahead)

    def skip(self) -> None:
        """Leave out the job that would be late. Jobs that are due before it have no margin."""
        del self._due[self._place]
        self._certain, self._free_there = self._place, self._free.copy()


def _leftovers(jobs: list[_Candidate], devices: Ints, state: State, left: int, horizon_s: float) -> None:
    """Give remaining devices to the jobs where they save the most device-time. ``devices`` is changed.

    Jobs first keep their devices. Growth must repay its restart.
    """
    heap: list[tuple[float, int, int]] = []

    def push(place: int, least: int = 0) -> None:
        job = jobs[place]
        given, held = int(devices[job.index]), int(state.devices[job.index])
        place_of = int(job.speeds.sizes.searchsorted(max(given, least), "right"))
        if place_of == len(job.speeds.sizes):
            return
        size, table = int(job.speeds.sizes[place_of]), job.speeds.table
        pays = given != held or (table[size] - table[held]) * horizon_s > table[size] * state.restart_s[job.index]
        if pays or size < job.speeds.sizes[-1]:
            first = int(job.speeds.sizes[0])
            saved = float(table[size] - table[given]) / (size - given) / float(table[first]) * first
            if pays:
                heapq.heappush(heap, (-saved, place, size))
            else:
                push(place, size)

    for job in sorted(jobs, key=lambda job: -int(state.devices[job.index])):
        more = int(state.devices[job.index]) - int(devices[job.index])
        if 0 < more <= left:
            devices[job.index] += more
            left -= more
    for place in range(len(jobs)):
        push(place)
    while left > 0 and heap:
        _, place, size = heapq.heappop(heap)
        index = jobs[place].index
        more = size - int(devices[index])
        if more <= left:
            devices[index], left = size, left - more
            push(place)
