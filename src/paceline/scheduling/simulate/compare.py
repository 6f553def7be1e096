"""Comparison of policies on the same jobs: paired differences of completion times, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError, check_count
from paceline.scheduling.simulate.scenario import Scenario
from paceline.scheduling.simulate.simulated import SimulatedSchedule

SAMPLES = 2000
"""Bootstrap samples of an interval."""
FEWEST = 5
"""Fewest common jobs for a verdict. An interval resampled from fewer jobs is too narrow."""


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Policy compared with the first one, over the jobs that ended under both. Intervals are 95 %, from resampled jobs.

    Attributes:
        difference_s: mean of (its completion time - that of the first); ``low_s`` to ``high_s``.
        ratio: ratio of the mean completion times; ``ratio_low`` to ``ratio_high``.
        sooner: share of jobs that end sooner than under the first.
        fewer: jobs that ended under the first, minus those that ended under it. A policy that turns jobs away leaves more
            devices to the others, so that they end sooner. This is not an advantage.
    """

    policy: str
    base: str
    jobs: int
    fewer: int
    difference_s: float
    low_s: float
    high_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    sooner: float

    def to_json(self) -> dict[str, Any]:
        """Return all figures by name, and the verdict."""
        return {**asdict(self), "verdict": self.verdict}

    @property
    def settled(self) -> bool:
        """True if there are enough jobs and the interval excludes 0."""
        return self.jobs >= FEWEST and (self.low_s > 0 or self.high_s < 0)

    @property
    def verdict(self) -> str:
        """The verdict: ``shorter`` or ``longer`` than under the first policy, or why it is open."""
        if self.jobs < FEWEST:
            return "too few jobs" if self.jobs else "no common job"
        if self.fewer * self.difference_s < 0:
            return f"ended {abs(self.fewer):,} {'fewer' if self.fewer > 0 else 'more'}"
        return ("shorter" if self.difference_s < 0 else "longer") if self.settled else "not settled"


def run_policies(
    scenario: Scenario,
    policies: Sequence[str],
    processes: int = 1,
    done: Callable[[str], None] | None = None,
    progress: Callable[[str, float, int], None] | None = None,
) -> dict[str, SimulatedSchedule]:
    """Simulate every policy on the same jobs, in the given order.

    Args:
        processes: number of parallel processes. Only the measured decision times depend on it.
        done: callback that receives each finished policy.
        progress: callback that receives policy, time and number of ended jobs, if one process runs.

    Raises:
        UserError: a policy that is named twice, and errors of a simulation with its policy.
    """
    check_count(processes, "processes")
    if len(set(policies)) < len(policies) or not policies:
        raise UserError(f"the policies {', '.join(policies) or '(none)'}", "name each policy once, and at least one")
    simulated: dict[str, SimulatedSchedule] = {}
    if processes == 1:
        for policy in policies:
            step = (lambda moment, ended, policy=policy: progress(policy, moment, ended)) if progress else None  # type: ignore[misc]
            with _named(policy):
                simulated[policy] = scenario.run(policy, step)
            if done:
                done(policy)
        return simulated
    with ProcessPoolExecutor(min(processes, len(policies)), get_context("spawn")) as pool:
        waiting = {pool.submit(scenario.run, policy): policy for policy in policies}
        try:
            for future in as_completed(waiting):
                with _named(waiting[future]):
                    simulated[waiting[future]] = future.result()
                if done:
                    done(waiting[future])
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {policy: simulated[policy] for policy in policies}


@contextmanager
def _named(policy: str) -> Iterator[None]:
    """Add the policy to the errors of its simulation."""
    try:
        yield
    except UserError as error:
        raise UserError(f"under {policy}: {error.message}", error.fix) from None


def best(simulated: Mapping[str, SimulatedSchedule]) -> str:
    """Return the policy with the shortest mean completion time among those under which the most jobs ended."""
    figures = {name: one.metrics for name, one in simulated.items()}
    return min(figures, key=lambda name: (-figures[name].ended, np.nan_to_num(figures[name].mean_jct_s, nan=math.inf)))


def compare(simulated: Mapping[str, SimulatedSchedule], seed: int = 0) -> list[Paired]:
    """Compare each policy with the first.

    Args:
        seed: seed of the resampling.
    """
    (base, first), *others = simulated.items()
    return [paired(base, first, name, other, seed) for name, other in others]


def paired(base: str, first: SimulatedSchedule, name: str, other: SimulatedSchedule, seed: int = 0) -> Paired:
    """Compare one policy with another, job by job."""
    before, after = _common_completions(first, other)
    fewer = first.metrics.ended - other.metrics.ended
    return Paired(policy=name, base=base, jobs=len(before), fewer=fewer, **difference(before, after, seed))


def difference(before: Array, after: Array, seed: int = 0) -> dict[str, float]:
    """Return means and 95 % intervals of ``Paired``; NaN without jobs.

    Args:
        before, after: completion times of the same jobs in seconds, of shape (jobs,).
    """
    if not len(before):
        return dict.fromkeys(_FIGURES, math.nan)
    means = _resampled(np.stack([before, after]), seed)
    low, high = np.percentile(means[1] - means[0], [2.5, 97.5])
    ratio_low, ratio_high = np.percentile(means[1] / means[0], [2.5, 97.5])
    values = ((after - before).mean(), low, high, after.mean() / before.mean(), ratio_low, ratio_high, (after < before).mean())
    return dict(zip(_FIGURES, map(float, values), strict=True))


def _common_completions(first: SimulatedSchedule, other: SimulatedSchedule) -> tuple[Array, Array]:
    """Return the completion times of the jobs that ended under both."""
    times = {outcome.job.name: outcome.jct_s for outcome in other.schedule.outcomes}
    pairs = [(outcome.jct_s, times[outcome.job.name]) for outcome in first.schedule.outcomes]
    table = np.array(pairs).reshape(-1, 2)
    table = table[np.isfinite(table).all(axis=1)]
    return table[:, 0], table[:, 1]


def _resampled(pairs: Array, seed: int) -> Array:
    """Return the means of both rows over jobs drawn with replacement, of shape (2, SAMPLES)."""
    random, jobs = np.random.default_rng(seed), pairs.shape[1]
    return np.stack([pairs[:, random.integers(0, jobs, jobs)].mean(axis=1) for _ in range(SAMPLES)], axis=1)


_FIGURES = ("difference_s", "low_s", "high_s", "ratio", "ratio_low", "ratio_high", "sooner")
