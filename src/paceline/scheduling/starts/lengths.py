"""Distribution of the length of a job: from runs of its owner, of its queue and of all, and from its stated limit.

Jobs of one owner resemble each other: Tsafrir, Etsion and Feitelson, "Backfilling using system-generated predictions rather
than user runtime estimates", IEEE TPDS 18(6), 2007, predict a job by its owner's last two. Here each level is a Kaplan-Meier
estimate, in which jobs that still run count as longer than they have run. Levels with few jobs are
shrunk to the next wider one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.scheduling.traces.record import LoggedJob

SHRINKAGE = 3.0
"""Number of jobs at which a level counts as much as all wider levels together."""
RECENCY = 0.95
"""Weight of an owner's job relative to the next later one."""
MOST_JOBS = 3000
"""Most recent jobs of the history that are read."""
PUBLISHED_RATIOS = ((0.10, 0.0, 0.02), (0.80, 0.02, 0.98), (0.10, 0.98, 1.0))
"""Real length / stated limit, as (probability, from, to) with equal density in each part.

Mu'alem and Feitelson, "Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM SP2 with
backfilling", IEEE TPDS 12(6), 2001, report an even distribution with peaks at both ends: jobs that fail at once, and jobs that
are ended at their limit. The heights of the peaks differ between machines. A tenth each is assumed.
"""
SHORTEST_S, LONGEST_S = 60.0, 7 * 86400.0
"""Range of a job of which nothing is known, with equal density of the logarithm (the form of Downey, "Predicting queue times on
space-sharing parallel computers", IPPS 1997). The ends are assumed."""
PERIODS, FEWEST_OF_PERIOD = 20, 5
"""Most periods of the history whose lengths are compared, and fewest jobs of a period."""
ASSUMED_CORRELATIONS = (0.2, 0.3)
"""Correlations of one owner and of a period, where the history is too short to tell.

The correlation of a period is the middle of 0.17, 0.26, 0.40 and 0.50, measured on two virtual clusters of Philly (6c71a0,
ed69ec) and two clusters of ITP (03, 06): successive jobs resemble each other (Feitelson, "Workload Modeling for Computer
Systems Performance Evaluation", 2015, locality of sampling). The correlation of an owner is a round number.
"""
ASSUMED_PERIODS = 5
"""Weight of the assumed correlations, in periods of the history."""
MOST_VALUES = 512
"""Most values of a distribution."""
_ATOMS = 64
_NORMAL_90 = 1.2815515655446004
"""90 % quantile of the standard normal distribution."""
_NO_ROWS: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True)
class LengthDistribution:
    """Distribution of a job's whole length in seconds: values in ascending order, with their probabilities.

    ``source``: what it is from, in words.
    """

    values: Array
    weights: Array
    source: str = ""

    @classmethod
    def of(cls, values: Array, weights: Array, source: str = "") -> LengthDistribution:
        """Return a distribution from values in any order."""
        order = np.argsort(values, kind="stable")
        return cls(values[order], weights[order] / weights.sum(), source)

    def after(self, elapsed_s: float, limit_s: float = 0.0) -> LengthDistribution:
        """Return the distribution of a job that has run for a while. ``limit_s``: its limit; 0: unknown.

        If it has run longer than every known job, its rest is even up to its limit. Without a limit its length is Pareto
        distributed with exponent 1: it doubles with probability one half.
        """
        longer = self.values > elapsed_s
        if longer.any():
            return LengthDistribution(self.values[longer], self.weights[longer] / self.weights[longer].sum(), self.source)
        shares = (np.arange(_ATOMS) + 0.5) / _ATOMS
        rest = elapsed_s + shares * (limit_s - elapsed_s) if limit_s > elapsed_s else max(elapsed_s, 1.0) / (1 - shares)
        return LengthDistribution(rest, np.full(_ATOMS, 1 / _ATOMS), self.source)

    def capped(self, limit_s: float) -> LengthDistribution:
        """Return the distribution of a job that is ended at its limit."""
        return LengthDistribution(np.minimum(self.values, limit_s), self.weights, self.source) if limit_s else self

    def scaled(self, factor: float) -> LengthDistribution:
        """Return the distribution of a multiple of the length."""
        return LengthDistribution(self.values * factor, self.weights, self.source)

    def thinned(self) -> LengthDistribution:
        """Return the distribution with at most ``MOST_VALUES`` values, which are quantiles of it."""
        if len(self.values) <= MOST_VALUES:
            return self
        shares = (np.arange(MOST_VALUES) + 0.5) / MOST_VALUES
        rows = np.searchsorted(np.cumsum(self.weights), shares * (1 - 1e-12))
        return LengthDistribution(self.values[rows], np.full(MOST_VALUES, 1 / MOST_VALUES), self.source)

    def quantile(self, share: Array | float) -> Array:
        """Return the length that a job stays below with a probability, linear between values."""
        middle = np.cumsum(self.weights) - self.weights / 2
        return np.asarray(np.interp(share, middle, self.values))


@dataclass(frozen=True)
class LengthModel:
    """Lengths of past jobs, from which those of others follow.

    Attributes:
        run_s: length of each past job, oldest first. ``over``: False for a job that still runs.
        correlation_owner: share of the variance of lengths that jobs of one owner and period have in common, given the owner's
            usual lengths. ``correlation_period``: share that all jobs of a period have in
            common.
        shrinkage, recency: as ``SHRINKAGE`` and ``RECENCY``.
    """

    jobs: tuple[LoggedJob, ...]
    run_s: Array
    over: Bools
    correlation_owner: float
    correlation_period: float
    shrinkage: float = SHRINKAGE
    recency: float = RECENCY
    _columns: dict[str, Array] = field(default_factory=dict, repr=False)
    _rows: dict[str, Ints] = field(default_factory=dict, repr=False)
    _cache: dict[tuple[object, ...], LengthDistribution] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        history: Sequence[LoggedJob],
        running: Sequence[LoggedJob] = (),
        *,
        shrinkage: float = SHRINKAGE,
        recency: float = RECENCY,
    ) -> LengthModel:
        """Build the model from jobs that ended and jobs that run. Jobs without a known length are ignored."""
        known = [job for job in history if job.run_s > 0]
        known = sorted(known, key=lambda job: job.end_s if job.end_s == job.end_s else job.submit_s)[-MOST_JOBS:]
        present = [job for job in running if job.run_s > 0]
        jobs = (*known, *present)
        run_s = np.array([job.run_s for job in jobs], float)
        over = np.array([True] * len(known) + [False] * len(present), bool)
        owner, day = _correlations(known)
        rows: dict[str, list[int]] = {}
        model = cls(jobs, run_s, over, owner, day, shrinkage, recency)
        model._columns.update(
            title=np.array([job.title for job in jobs], object),
            queue=np.array([job.queue for job in jobs], object),
            devices=np.log2(np.array([max(job.devices, 1) for job in jobs], float)),
            limit=np.log2(np.array([max(job.limit_s, 1.0) for job in jobs], float)),
            limit_s=np.array([job.limit_s for job in jobs], float),
        )
        for row, job in enumerate(jobs):
            rows.setdefault(job.user, []).append(row)
        model._rows.update({user: np.array(chosen, np.int64) for user, chosen in rows.items()})
        return model

    def distribution(self, job: LoggedJob, base: LengthDistribution | None = None) -> LengthDistribution:
        """Return the distribution of a job's whole length, at most its limit.

        Args:
            base: length predicted from the job's command line, which takes the place of all levels but that of the owner's
                runs with the same name, devices and limit.
        """
        key = (job.user, job.title, job.queue, job.devices, job.limit_s, id(base))
        if key not in self._cache:
            self._cache[key] = self._distribution(job, base).capped(job.limit_s)
        return self._cache[key]

    def _distribution(self, job: LoggedJob, base: LengthDistribution | None) -> LengthDistribution:
        if not len(self.jobs):
            return base or nothing_known(job.limit_s)
        found = base or self._of_queue(job.queue, job.devices, job.limit_s)
        rows = self._rows.get(job.user, _NO_ROWS) if job.user else _NO_ROWS
        if not rows.size:
            return found
        c = self._columns
        if base is None:
            near = self._nearness(rows, job.devices, job.limit_s)
            found = self._level(found, self.run_s[rows], rows, self._recent(rows) * near, "its owner's jobs")
        same = (c["devices"][rows] == math.log2(max(job.devices, 1))) & (c["limit_s"][rows] == job.limit_s)
        if job.title:
            same &= c["title"][rows] == job.title
        rows = rows[same]
        return self._level(found, self.run_s[rows], rows, self._recent(rows), "its owner's runs of this kind")

    def _of_queue(self, queue: str, devices: int, limit_s: float) -> LengthDistribution:
        """Return the distribution of a job of an unknown owner: real lengths in proportion to stated limits."""
        key = (queue, devices, limit_s)
        if key not in self._cache:
            rows = np.arange(len(self.jobs))
            near, ratio = self._nearness(rows, devices, limit_s), np.ones(len(rows))
            if limit_s:
                limited = self._columns["limit_s"] > 0
                ratio[limited] = limit_s / self._columns["limit_s"][limited]
            rows = rows[near > 1e-3]
            found = self._level(nothing_known(limit_s), (self.run_s * ratio)[rows], rows, near[rows], "all jobs")
            if queue:
                rows = rows[self._columns["queue"][rows] == queue]
                found = self._level(found, (self.run_s * ratio)[rows], rows, near[rows], "its queue")
            if limit_s:
                rows = np.flatnonzero(self._columns["limit_s"] == limit_s)
                found = self._level(found, self.run_s[rows], rows, near[rows], found.source)
            self._cache[key] = found
        return self._cache[key]

    def _nearness(self, rows: Ints, devices: int, limit_s: float) -> Array:
        """Return the weight of past jobs: half for each doubling of devices or limit between the two jobs."""
        near = np.abs(self._columns["devices"][rows] - math.log2(max(devices, 1)))
        if limit_s:
            limited = self._columns["limit_s"][rows] > 0
            near = near + np.where(limited, np.abs(self._columns["limit"][rows] - math.log2(limit_s)), 2.0)
        return np.asarray(0.5**near)

    def _recent(self, rows: Ints) -> Array:
        return np.asarray(self.recency ** np.arange(len(rows) - 1, -1, -1.0))

    def _level(self, base: LengthDistribution, values: Array, rows: Ints, weights: Array, source: str) -> LengthDistribution:
        """Return the mixture of the jobs of a level with the wider levels. ``values``: their lengths."""
        if not rows.size:
            return base
        amount = float(weights.sum())
        share = amount / (amount + self.shrinkage)
        values, mass, rest, last_s = kaplan_meier(values, weights, self.over[rows])
        parts, masses = [values, base.values], [mass * share, base.weights * (1 - share)]
        if rest > 1e-9:
            tail = base.after(last_s)
            parts.append(tail.values)
            masses.append(tail.weights * (rest * share))
        heavy = share > 0.5 or not base.source
        return LengthDistribution.of(np.concatenate(parts), np.concatenate(masses), source if heavy else base.source).thinned()


def kaplan_meier(values: Array, weights: Array, over: Bools) -> tuple[Array, Array, float, float]:
    """Return the lengths that ended with their probabilities, the probability of longer ones, and the longest time observed.

    Source: Kaplan and Meier, "Nonparametric estimation from incomplete observations", 1958, with weights.

    Args:
        over: False where a value is only a lower bound.
    """
    order = np.lexsort((~over, values))
    values, weights, over = values[order], weights[order], over[order]
    at_risk = np.cumsum(weights[::-1])[::-1]
    hazard = np.where(over, weights / at_risk, 0.0)
    survival = np.cumprod(1 - np.minimum(hazard, 1.0))
    mass = np.concatenate([[1.0], survival[:-1]]) * hazard
    return values[over], mass[over], float(survival[-1]), float(values[-1])


def from_range(low_s: float, median_s: float, high_s: float) -> LengthDistribution:
    """Return the distribution of a length predicted from a command line, by its 10 % quantile, median and 90 % quantile.

    It is lognormal on each side of the median.
    """
    from scipy.special import ndtri

    normal = np.asarray(ndtri((np.arange(_ATOMS) + 0.5) / _ATOMS))
    below = math.log(median_s / min(low_s, median_s)) / _NORMAL_90
    above = math.log(max(high_s, median_s) / median_s) / _NORMAL_90
    values = median_s * np.exp(np.where(normal < 0, below, above) * normal)
    return LengthDistribution(values, np.full(_ATOMS, 1 / _ATOMS), "its command line")


def nothing_known(limit_s: float) -> LengthDistribution:
    """Return the distribution of a job without any history, from its limit if it has one."""
    if not limit_s:
        shares = (np.arange(_ATOMS) + 0.5) / _ATOMS
        values = SHORTEST_S * (LONGEST_S / SHORTEST_S) ** shares
        return LengthDistribution(values, np.full(_ATOMS, 1 / _ATOMS), "a guess: it has no history and no limit")
    parts: list[Array] = []
    masses: list[Array] = []
    for probability, least, most in PUBLISHED_RATIOS:
        count = max(4, round(probability * _ATOMS))
        parts.append(limit_s * (least + (np.arange(count) + 0.5) / count * (most - least)))
        masses.append(np.full(count, probability / count))
    return LengthDistribution.of(np.concatenate(parts), np.concatenate(masses), "its limit")


def _correlations(known: Sequence[LoggedJob]) -> tuple[float, float]:
    """Return what jobs of one owner and period share beyond those of the period, and what all jobs of a period share.

    Both are shares of the variance of normal scores of the lengths. A period is a number of consecutive submissions.
    """
    dated = sorted((job for job in known if job.submit_s == job.submit_s), key=lambda job: job.submit_s)
    if len(dated) < 4 * FEWEST_OF_PERIOD:
        return ASSUMED_CORRELATIONS
    lengths = np.log(np.array([job.run_s for job in dated]))
    number = min(PERIODS, len(dated) // FEWEST_OF_PERIOD)
    periods = [at * number // len(dated) for at in range(len(dated))]
    owners = [job.user or job.queue for job in dated]
    within = np.zeros(len(dated))
    for owner in set(owners):
        rows = np.array([name == owner for name in owners])
        within[rows] = _scores(lengths[rows])
    by_owner = _intraclass(within, [hash(pair) for pair in zip(owners, periods, strict=True)])
    by_period = min(max(_intraclass(_scores(lengths), periods), 0.0), 0.5)
    measured = min(max(by_owner - by_period, 0.0), 0.8), by_period
    share = number / (number + ASSUMED_PERIODS)
    mixed = [share * one + (1 - share) * other for one, other in zip(measured, ASSUMED_CORRELATIONS, strict=True)]
    return mixed[0], mixed[1]


def _scores(values: Array) -> Array:
    """Return normal scores of the ranks of values."""
    from scipy.special import ndtri

    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return np.asarray(ndtri((ranks + 0.5) / len(values)))


def _intraclass(values: Array, groups: Sequence[int]) -> float:
    """Return the intraclass correlation by analysis of variance with groups of unequal size (Fisher, 1925)."""
    _, index = np.unique(np.array(groups), return_inverse=True)
    counts = np.bincount(index)
    number, total = len(counts), len(values)
    if number < 2 or total <= number:
        return 0.0
    means = np.bincount(index, values) / counts
    between = float((counts * (means - values.mean()) ** 2).sum() / (number - 1))
    within = float(((values - means[index]) ** 2).sum() / (total - number))
    size = (total - (counts**2).sum() / total) / (number - 1)
    return (between - within) / (between + (size - 1) * within) if between + (size - 1) * within > 0 else 0.0
