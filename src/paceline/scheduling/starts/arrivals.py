"""Jobs still to come: stretches of the queue's own history, drawn at the same time of the day."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
