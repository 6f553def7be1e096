"""Jobs still to come: stretches of the queue's own history, drawn at the same time of the day, and jobs that wait for others.

Source: sbatch(1), ``--dependency``. A job that waits for another one counts as ready when that ends, whose success is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.array_types import Array, Ints
from paceline.scheduling.traces.record import LoggedJob

DAY_S = 86400.0
LOOK_BACK_S = 28 * DAY_S
"""Longest history that futures are drawn from."""
NEAR_S = 2 * 3600.0
"""Greatest difference of the time of the day."""
LEAST_JOBS = 20
"""Fewest jobs that are a history of arrivals."""
MOST_ARRIVALS = 3000
"""Most jobs to come of a future."""


@dataclass(frozen=True)
class Arrivals:
    """Past submissions, of which every future gets a stretch (a block bootstrap: Künsch, Annals of Statistics 17, 1989).

    Attributes:
        jobs: jobs in order of submission. ``submit_s``: submission of each.
        until_s: end of the period in which submissions are known.
    """

    jobs: tuple[LoggedJob, ...]
    submit_s: Array
    until_s: float

    @classmethod
    def of(cls, jobs: Sequence[LoggedJob], now_s: float) -> Arrivals:
        """Return the submissions among jobs that ended, run or wait."""
        dated = sorted((job for job in jobs if now_s - LOOK_BACK_S <= job.submit_s <= now_s), key=lambda job: job.submit_s)
        return cls(tuple(dated), np.array([job.submit_s for job in dated], float), now_s)

    def __bool__(self) -> bool:
        return len(self.jobs) >= LEAST_JOBS and bool(self.until_s - self.submit_s[0] >= 3600.0)

    def draw(self, futures: int, seed: int, horizon_s: float = math.inf) -> list[tuple[Array, Ints]]:
        """Return the jobs to come in each future: seconds after the present, in order, and rows of ``jobs``.

        A stretch that reaches the end of the history continues at its beginning. No job comes after ``horizon_s``.
        """
        if not self:
            return [(np.zeros(0), np.zeros(0, np.int64)) for _ in range(futures)]
        first_s, span_s = float(self.submit_s[0]), self.until_s - float(self.submit_s[0])
        generator = np.random.default_rng([seed, 1])
        shares = (generator.permutation(futures) + generator.random(futures)) / futures
        return [self._stretch(self._offset(share, first_s, span_s), horizon_s) for share in shares.tolist()]

    def _offset(self, share: float, first_s: float, span_s: float) -> float:
        """Return the start of a stretch. With three days or more it is near the present time of the day."""
        days = int(span_s // DAY_S)
        if days < 3:
            return first_s + share * span_s
        day = share * days
        return self.until_s - (int(day) + 1) * DAY_S + (2 * (day - int(day)) - 1) * NEAR_S

    def _stretch(self, offset_s: float, horizon_s: float) -> tuple[Array, Ints]:
        first = int(np.searchsorted(self.submit_s, offset_s, side="right"))
        rows = np.roll(np.arange(len(self.jobs)), -first)
        after = np.roll(self.submit_s, -first) - offset_s
        after[len(rows) - first :] += self.until_s - float(self.submit_s[0])
        count = min(int(np.searchsorted(after, horizon_s, side="right")), MOST_ARRIVALS)
        return np.maximum(after[:count], 1e-3), rows[:count].astype(np.int64)


def predecessors(job: LoggedJob, others: Sequence[LoggedJob]) -> list[tuple[int, str]] | None:
    """Return the places of the jobs that a job waits for, each with its event; None if one is not among ``others``.

    The name of an array or of a heterogeneous job means all of its parts.
    """
    found: list[tuple[int, str]] = []
    for name, event in job.after:
        places = [place for place, other in enumerate(others) if other.name != job.name and _is_meant(job, other, name)]
        if not places and event != "singleton":
            return None
        found += [(place, "end" if event == "singleton" else event) for place in places]
    return found


def _is_meant(job: LoggedJob, other: LoggedJob, name: str) -> bool:
    """Return whether a dependency means a job; without a name, an earlier job of its name and user (``singleton``)."""
    if name:
        return name in (other.name, other.array, other.name.partition("+")[0])
    return bool(job.title) and (other.title, other.user) == (job.title, job.user) and other.submit_s <= job.submit_s


Simulate = Callable[[Sequence[tuple[Array, Ints]], Sequence[int]], tuple[Array, Array]]
"""Function from the jobs to come and the rows of jobs to their starts and lengths, each of shape (futures, jobs)."""
NEVER_S = 1e9
"""Arrival of a job whose predecessor never ends."""
MOST_ROUNDS = 12
"""Most simulations for a chain of jobs, each of which waits for the one before."""


@dataclass(frozen=True)
class Dependents:
    """Waiting jobs that may start when others have started or ended.

    Attributes:
        after: rows of the jobs that each waits for, with the event, by its own row.
        left_s: time until the end of each running job in each future, by its row.
    """

    after: Mapping[int, Sequence[tuple[int, str]]]
    left_s: Mapping[int, Array]

    @property
    def rows(self) -> list[int]:
        """Rows of waiting jobs that others wait for."""
        return sorted({row for waits in self.after.values() for row, _ in waits if row not in self.left_s})

    def moments(self, starts: Mapping[int, tuple[Array, Array]], futures: int) -> dict[int, Array]:
        """Return when each may start in each future. ``starts``: start and length of waiting jobs, by their rows."""
        found = {}
        for row, waits in self.after.items():
            moment = np.full(futures, 1e-3)
            for other, event in waits:
                if other in self.left_s:
                    moment = np.maximum(moment, self.left_s[other] if event == "end" else 0.0)
                elif other in starts:
                    start_s, length_s = starts[other]
                    moment = np.maximum(moment, start_s + (length_s if event == "end" else 0.0))
                else:
                    moment = np.full(futures, NEVER_S)
            found[row] = np.minimum(moment, NEVER_S)
        return found

    def simulated(self, simulate: Simulate, coming: Sequence[tuple[Array, Ints]], rows: Sequence[int]) -> tuple[Array, Array]:
        """Return starts and lengths of some rows. A job changes nothing before it may start, so that chains are exact."""
        futures = len(coming)
        asked = [*rows, *(row for row in self.rows if row not in rows)]
        moments = self.moments({}, futures)
        for _ in range(MOST_ROUNDS):
            added = [_with(pair, {row: float(moment[at]) for row, moment in moments.items()}) for at, pair in enumerate(coming)]
            starts, lengths = simulate(added, asked)
            known = {row: (starts[:, at], lengths[:, at]) for at, row in enumerate(asked)}
            later = self.moments(known, futures)
            if all(np.array_equal(later[row], moment) for row, moment in moments.items()):
                break
            moments = later
        return starts[:, : len(rows)], lengths[:, : len(rows)]


def _with(pair: tuple[Array, Ints], more: Mapping[int, float]) -> tuple[Array, Ints]:
    """Return jobs to come with more of them, in the order of time."""
    return merged(pair, (np.array(list(more.values()), float), np.array(list(more), np.int64)))


def merged(one: tuple[Array, Ints], other: tuple[Array, Ints]) -> tuple[Array, Ints]:
    """Return two lists of moments and rows as one in the order of time."""
    moments = np.concatenate([one[0], other[0]])
    order = np.argsort(moments, kind="stable")
    return moments[order], np.concatenate([one[1], other[1]])[order]


def components_joined(jobs: Sequence[LoggedJob]) -> tuple[list[LoggedJob], list[str]]:
    """Return waiting jobs with one in place of the components of a heterogeneous job, and a remark on each such job.

    Components start together, and may share nodes. They stay apart if their types or partitions differ. One without devices is
    left out.
    """
    groups: dict[str, list[LoggedJob]] = {}
    for job in jobs:
        first, plus, _ = job.name.partition("+")
        if plus:
            groups.setdefault(first, []).append(job)
    made, gone, remarks = {}, set(), []
    for first, every in groups.items():
        parts = [job for job in every if job.devices]
        kinds = {(job.queue, job.device_types, job.profile, job.share) for job in parts}
        if len(every) > 1 and len(kinds) == 1:
            each = {job.devices // max(job.nodes, 1) for job in parts if job.nodes}
            nodes = sum(job.nodes for job in parts) if len(each) == 1 else 0
            devices = sum(job.devices for job in parts)
            limit_s = 0.0 if any(not job.limit_s for job in parts) else max(job.limit_s for job in parts)
            made[parts[0].name] = replace(parts[0], devices=devices, nodes=nodes, node_devices=0, limit_s=limit_s)
            gone |= {job.name for job in every} - {parts[0].name}
            remarks.append(f"{parts[0].name} stands for {len(every)} components of job {first}, which start together.")
    return [made.get(job.name, job) for job in jobs if job.name not in gone], remarks
