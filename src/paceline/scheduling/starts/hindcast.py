"""Ranges from the queue's own past: starts forecast at past moments of its log, compared with the starts that followed.

The simulation is the centre. Both halves of its range are stretched or narrowed after each past start that is known, so that
a tenth of the starts fall on each side. Sources: online conformal prediction (Gibbs and Candès, "Adaptive conformal inference
under distribution shift", NeurIPS 2021), as a quantile tracker (Angelopoulos, Candès and Tibshirani, "Conformal PID control for
time series prediction", NeurIPS 2023). The errors need not be independent, and jobs of one busy period share theirs. So the
share of misses is held over many busy periods, and not within one.

The tracker instead of quantiles of past errors, ``HINDCASTS`` and ``RECENT`` were chosen in sight of the sources of
``development`` in ``benchmarks/start_times.py`` and ``benchmarks/start_times_slurm.py`` alone. A range of no width then became
wide before any miss. This, ``LEAST_HALF`` and the comparison without a tolerance of a second were chosen in sight of the
lightly loaded run of Slurm, which counts as ``development`` since.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.starts.forecast import HIGH, LOW, Forecaster, ForecastOptions, StartForecast
from paceline.scheduling.starts.waiting_queue import WaitingQueue, start_order
from paceline.scheduling.traces.record import LoggedJob

HINDCASTS = 100
"""Past starts that are forecast, each in 0.02 to 0.5 s. While no stretch is at its bound, the share of misses on a side
differs from a tenth by at most log(``MOST_STRETCH``) / (``RATE`` * number) (Gibbs and Candès, proposition 4.1)."""
RECENT = 0.25
"""Share of the past, the latest, from which past starts are taken. It is more if that has fewer than ``HINDCASTS``."""
POLICY_HINDCASTS = 0
"""The same under a policy with settings, where a forecast takes 15 to 30 s."""
LEAST_ENDED = 20
"""Fewest jobs that had ended at the moment of a hindcast, as a history of lengths."""
WAITED_S = 1.0
"""Least wait of a job that did not start when it was submitted."""
RATE = 0.1
"""Step of the logarithm of a stretch after a miss. Angelopoulos, Candès and Tibshirani take a tenth of the range of the scores,
which is log(``MOST_STRETCH``) = 1.1."""
CYCLE_S = 60.0
"""Time up to which errors are compared by difference, and beyond by ratio: Slurm tries all jobs once in 60 s
(``slurm.conf``, ``sched_interval``)."""
LEAST_HALF = 0.4
"""Half of a range, as a logarithm, of which a stretch adds at least multiples: a factor of 1.5. Narrower halves do not grow
by multiples of themselves, and the simulated range may have no width."""

MOST_STRETCH = 3.0
"""Greatest stretch, and inverse of the least. Starts farther outside are not of the simulated kind: the share inside tells."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Hindcast:
    """Forecast of one past job at its submission, and its start.

    Attributes:
        moment_s: submission, at which the forecast is made. ``start_s``: actual start; NaN: it still waits.
        futures_s: wait in each future.
    """

    name: str
    moment_s: float
    start_s: float
    futures_s: Array

    @cached_property
    def scale(self) -> _WaitScale | None:
        """Median and range of the futures; None if they do not foresee the start."""
        return _WaitScale.of(self.futures_s)


@dataclass(frozen=True)
class PastStarts:
    """Hindcasts of a queue, the earliest first, which stretch the ranges of its forecasts.

    Attributes:
        until_s: present, up to which starts are known.
        held: past jobs that waited although devices were free in each future. Something held them that the log does not tell,
            such as a dependency, so they check nothing.
    """

    hindcasts: tuple[Hindcast, ...]
    until_s: float
    held: int = 0

    def __bool__(self) -> bool:
        return bool(self.hindcasts)

    def stretched(self, forecast: StartForecast) -> StartForecast:
        """Return a forecast whose futures are moved away from their median, or to it, so that its range fits the past."""
        scale = _WaitScale.of(forecast.start_s)
        if scale is None:
            return forecast
        return replace(forecast, start_s=scale.moved(forecast.start_s, self._tracked.below, self._tracked.above))

    def notes(self) -> tuple[str, ...]:
        """Return a sentence on past jobs that check nothing; none without such jobs."""
        if not self.held:
            return ()
        return (f"Past jobs that waited although devices were free: {self.held}. They check no range.",)

    def coverage(self) -> tuple[int, int]:
        """Return how many past starts fell inside their 80 % range, and how many were checked.

        Each range is stretched by what was known at its own moment alone.
        """
        known = [inside for start_s, inside in self._tracked.issued if start_s <= self.until_s]
        return sum(known), len(known)

    @cached_property
    def _tracked(self) -> _RangeTracker:
        tracker = _RangeTracker()
        for hindcast in self.hindcasts:
            tracker.issue(hindcast)
        tracker.learn_until(self.until_s)
        return tracker


class _RangeTracker:
    """Stretches of both halves of a range, moved after each start that is known.

    A range is issued with the stretches of its moment. A start is known when it happens. A start after the range is known to
    be a miss when the range ends.

    Attributes:
        issued: start of each past forecast, and whether its range holds it; inf: it still waits.
    """

    def __init__(self) -> None:
        self._logs = [0.0, 0.0]
        self._pending: list[tuple[float, int, tuple[bool, bool]]] = []
        self.issued: list[tuple[float, bool]] = []

    @property
    def below(self) -> float:
        """Stretch of the half before the median."""
        return math.exp(self._logs[0])

    @property
    def above(self) -> float:
        """Stretch of the half after the median."""
        return math.exp(self._logs[1])

    def issue(self, hindcast: Hindcast) -> None:
        """Take a past forecast, not earlier than those before. Nothing is learned from it if it does not foresee the start."""
        self.learn_until(hindcast.moment_s)
        if hindcast.scale is None:
            return
        low_s, high_s = hindcast.scale.ends(self.below, self.above)
        start_s = float(hindcast.start_s) if hindcast.start_s == hindcast.start_s else math.inf
        wait_s = start_s - hindcast.moment_s
        missed = wait_s < low_s, wait_s > high_s
        known_s = min(start_s, hindcast.moment_s + high_s)
        heapq.heappush(self._pending, (known_s, len(self.issued), missed))
        self.issued.append((start_s, not any(missed)))

    def learn_until(self, moment_s: float) -> None:
        """Move the stretches by what is known at a moment."""
        while self._pending and self._pending[0][0] <= moment_s:
            missed = heapq.heappop(self._pending)[2]
            for half, miss in enumerate(missed):
                moved = self._logs[half] + RATE * (miss - LOW)
                self._logs[half] = min(max(moved, -math.log(MOST_STRETCH)), math.log(MOST_STRETCH))


@dataclass(frozen=True)
class _WaitScale:
    """Median and halves of the range of a forecast, of logarithms of waits plus ``CYCLE_S``."""

    middle: float
    below: float
    above: float

    @classmethod
    def of(cls, waits_s: Array) -> _WaitScale | None:
        """Return the scale of a forecast; None if it does not foresee the start in enough futures."""
        logs = np.sort(_logs(waits_s))
        if not np.isfinite(logs[math.ceil(HIGH * (len(logs) - 1))]):
            return None
        low, middle, high = (float(np.quantile(logs[np.isfinite(logs)], share, method="hazen")) for share in (LOW, 0.5, HIGH))
        least = _least_half(middle)
        return cls(middle, max(middle - low, least), max(high - middle, least))

    def ends(self, below: float, above: float) -> tuple[float, float]:
        """Return the waits at both ends of the stretched range."""
        low = self.middle - float(_stretched(self.below, LEAST_HALF, below))
        high = self.middle + float(_stretched(self.above, LEAST_HALF, above))
        return max(math.exp(low) - CYCLE_S, 0.0), max(math.exp(high) - CYCLE_S, 0.0)

    def moved(self, waits_s: Array, below: float, above: float) -> Array:
        """Return waits at multiples of their differences to the median. Equal waits are spread by a stretch above 1."""
        logs = _logs(waits_s)
        ranks = (np.argsort(np.argsort(logs, kind="stable"), kind="stable") + 0.5) / len(logs) - 0.5
        share = np.maximum(np.abs(ranks) - 0.5 / len(logs), 0.0) / (HIGH - 0.5)
        apart = np.maximum(np.abs(logs - self.middle), share * _least_half(self.middle))
        least = share * LEAST_HALF
        moved = self.middle + np.where(ranks < 0, -_stretched(apart, least, below), _stretched(apart, least, above))
        return np.maximum(np.exp(moved) - CYCLE_S, 0.0)


def past_starts(
    queue: WaitingQueue,
    options: ForecastOptions,
    number: int | None = None,
    *,
    say: Say | None = None,
    kept: MutableMapping[str, Hindcast] | None = None,
) -> PastStarts:
    """Forecast past starts of a queue, each with what was known when the job was submitted.

    Among the latest ones, the jobs with the least hashes of their names are taken (bottom-k sampling: Cohen and Kaplan, PODC
    2007), so that a queue read again gives almost the same.

    Args:
        number: most past starts; None: ``HINDCASTS``, or ``POLICY_HINDCASTS``.
        say: receives the progress.
        kept: hindcasts by job, which are not made again. Afterwards it has those of this call.
    """
    found: list[Hindcast] = []
    made = dict(kept or {})
    usual = HINDCASTS if queue.cluster is None else POLICY_HINDCASTS
    chosen = _chosen(queue, usual if number is None else number)
    for at, job in enumerate(chosen):
        if say is not None:
            say(f"checks the forecast on past starts: {at + 1} of {len(chosen)}")
        hindcast = made.get(job.name) or _hindcast(queue, job, options)
        found.append(replace(hindcast, start_s=job.start_s))
    if kept is not None:
        kept.clear()
        kept.update({hindcast.name: hindcast for hindcast in found})
    counted = [hindcast for hindcast in found if hindcast.futures_s.max() > 0]
    return PastStarts(tuple(sorted(counted, key=lambda each: each.moment_s)), queue.now_s, len(found) - len(counted))


def queue_at(queue: WaitingQueue, moment_s: float) -> WaitingQueue:
    """Return a queue as it was at a past moment, by the starts and ends that it states now.

    Jobs wait in order of submission.
    """
    ended, running, waiting = [], [], []
    for job in (*queue.history, *queue.running, *queue.waiting):
        arrival_s, start_s = _arrival(job), _start(job, queue.now_s)
        if job.end_s <= moment_s:
            ended.append(job)
        elif start_s <= moment_s:
            running.append(replace(job, state="running", run_s=moment_s - start_s, start_s=start_s, end_s=math.nan))
        elif arrival_s <= moment_s and _fits(queue, job):
            waiting.append(_waiting(job))
    return replace(
        queue,
        now_s=moment_s,
        running=tuple(running),
        waiting=tuple(sorted(waiting, key=start_order)),
        held=(),
        history=tuple(ended),
        skipped=(),
        remarks=(),
        notes=(),
    )


def _waiting(job: LoggedJob) -> LoggedJob:
    """Return a job as it waited. Its priority then is unknown: that of Slurm contains the age."""
    return replace(
        job,
        state="waiting",
        priority=0.0,
        run_s=math.nan,
        start_s=math.nan,
        end_s=math.nan,
        eligible_s=math.nan,
        reason="",
        after=(),
    )


def _fits(queue: WaitingQueue, job: LoggedJob) -> bool:
    """Return whether the present nodes can hold a job of the past."""
    return 0 < job.devices <= int(queue.nodes.devices[list(queue.nodes.pool(job))].sum())


def _chosen(queue: WaitingQueue, number: int) -> list[LoggedJob]:
    """Return late past jobs that waited, at most a number of them, with their starts."""
    ends = np.sort([job.end_s for job in queue.history if job.end_s == job.end_s])
    least_s = float(ends[LEAST_ENDED - 1]) if len(ends) >= LEAST_ENDED else math.inf
    found = []
    for job in (*queue.history, *queue.running, *queue.waiting):
        start_s = _start(job, queue.now_s)
        waited_s = (start_s if start_s == start_s else queue.now_s) - _arrival(job)
        if waited_s > WAITED_S and _arrival(job) >= least_s and _fits(queue, job):
            found.append(replace(job, start_s=start_s))
    found.sort(key=_arrival)
    recent = found[-max(number, math.ceil(RECENT * len(found))) :]
    return sorted(recent, key=lambda job: hashlib.blake2b(job.name.encode(), digest_size=8).digest())[:number]


def _hindcast(queue: WaitingQueue, job: LoggedJob, options: ForecastOptions) -> Hindcast:
    moment_s = _arrival(job)
    past = queue_at(queue, moment_s)
    target = next(other for other in past.waiting if other.name == job.name)
    forecast = Forecaster(past, options).forecast([target]).jobs[0]
    return Hindcast(job.name, moment_s, job.start_s, forecast.start_s)


def _arrival(job: LoggedJob) -> float:
    """Return the submission of a job, or the later time from which it might start; its start if the log states neither."""
    return job.arrival_s if job.arrival_s == job.arrival_s else job.start_s


def _start(job: LoggedJob, now_s: float) -> float:
    """Return the start of a job; NaN while it waits."""
    if job.start_s == job.start_s or job.state == "waiting":
        return job.start_s
    return (now_s if job.state == "running" else job.end_s) - max(job.run_s, 0.0)


def _least_half(middle: float) -> float:
    """Return half of a range that is a factor of 1.5 of the wait."""
    return LEAST_HALF * (1 - CYCLE_S / math.exp(middle))


def _stretched(apart: Array | float, least: Array | float, factor: float) -> Array:
    """Return multiples of differences. A factor above 1 adds at least as much as for the least difference."""
    return np.asarray(apart * factor if factor <= 1 else apart + (factor - 1) * np.maximum(apart, least))


def _logs(waits_s: Array) -> Array:
    return np.asarray(np.log(waits_s + CYCLE_S))
