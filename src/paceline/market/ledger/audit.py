"""Audit of lenders: find those that deliver less than predicted, at a stated rate of false alarms.

The residual of a job is log(achieved / predicted throughput); its standard deviation is sigma, the predictor's own error. A
wrong prediction of a model shows at all lenders. This bias, the weighted median of the model's residuals at the *other*
lenders, is subtracted. A lender throttles if the mean remaining residual is more than k standard errors below 0. The standard
error counts the jobs, the error of the medians, and an error that jobs of one model at one lender share, if any.

The result is relative to the other sites: if all throttle equally, no lender is found. With two sites the test cannot say which
one differs. A lender that was found no longer counts among the others, and the rest are tested again.

Sigma is 0.13 (``MEASURED_SIGMA``), between two measurements. Predictions of 36 steps of ``benchmarks/results/predict_lab.csv``,
each from a run on one device, scatter by 0.10 (``plain_error``); those of the 19 published runs of ``unseen_runs.csv`` in the
same folder by 0.11 within a model and by 0.14 overall, so part of it is the bias of models. It was the sigma of 36 steps before
the exchange was made faster (the same file at commit 15ea627f). Their tails were heavy: excess kurtosis 4.4, as of Student's t
with 5.4 degrees of freedom; now it is 1.8.

False alarms of one lender in percent, by 4 million simulated means of independent jobs of unit variance (one-sided):

| jobs | k | closed form, normal | normal | t, 5 degrees | t, 3 degrees |
|---|---|---|---|---|---|
| 10 | 2.326 | 1.00 | 0.99 | 1.17 | 1.23 |
| 40 | 2.326 | 1.00 | 1.01 | 1.06 | 1.13 |
| 10 | 3.090 | 0.100 | 0.099 | 0.205 | 0.404 |
| 40 | 3.090 | 0.100 | 0.101 | 0.134 | 0.280 |

Whole audits of ten honest lenders with 40 jobs of five wrongly predicted models each, at k for 5 %: 4.5 % blamed a lender, 4.9
% with t of 5 degrees, 4.7 % with 3 (1,500 audits each: a standard error of 0.6 points). The running test, made for 0.4 % in 40
jobs, alarmed at 0.08 % of such lenders, 0.4 % with t of 5 degrees, 1.4 % with 3 (800 audits each).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from paceline.array_types import Array, Bools, Ints
from paceline.errors import UserError, shown, unknown
from paceline.market.federation.site import LONGEST_NAME

MEASURED_SIGMA = 0.13
"""Standard deviation of log(predicted / measured step time), from the measurements above."""
MEASURED_KURTOSIS = 4.4
"""Excess kurtosis of such errors, at most."""
FALSE_ALARMS = 0.01
"""Default rate of false alarms of all lenders together."""
POWER = 0.9
"""Probability of finding a throttled share of the stated size."""
JOBS_BETWEEN_ALARMS = 10_000.0
"""Mean jobs of an honest lender between false alarms of the running test: one in about 1 % of each 100 jobs."""
LEAST_SIGMA, MOST_SIGMA = 1e-3, 10.0
"""Legal errors of a predictor: from 0.1 % to a factor of 20,000."""
MOST_K = 40.0
"""Most standard errors: beyond 38 the chance is below the smallest float."""
MOST_OFF = 1e6
"""Largest ratio of achieved and predicted throughput: more is a mistake of units."""
_NODES = 80
_ENDLESS = 1e14


@dataclass(frozen=True)
class JobSpeed:
    """Throughput of a job at a lender.

    Args:
        job: its name.
        model: group of jobs with a common bias of the prediction: the model, or the model and the device type.
        lender: the site that ran it.
        achieved_per_s: samples or steps per second. ``predicted_per_s``: the same, predicted.
        sigma: standard deviation of log(achieved / predicted) at an honest lender.

    Raises:
        UserError: a throughput that is no positive number, or is a million times the other; a sigma outside 0.001 to 10; a name
            that is empty or cannot be printed.
    """

    job: str
    model: str
    lender: str
    achieved_per_s: float
    predicted_per_s: float
    sigma: float = MEASURED_SIGMA

    def __post_init__(self) -> None:
        for name in ("job", "model", "lender"):
            if not isinstance(value := getattr(self, name), str) or not value:
                raise UserError(f"{name} {shown(value)} of an audited job", "give its name")
            if not value.isprintable() or len(value) > LONGEST_NAME:
                raise UserError(f"{name} {shown(value)} of an audited job", f"give at most {LONGEST_NAME} printable letters")
        for name in ("achieved_per_s", "predicted_per_s", "sigma"):
            _check_positive(f"{name} of job {self.job!r}", getattr(self, name))
        if not LEAST_SIGMA <= self.sigma <= MOST_SIGMA:
            raise UserError(
                f"sigma of job {self.job!r}: {shown(self.sigma)}", f"give a number from {LEAST_SIGMA:g} to {MOST_SIGMA:g}"
            )
        if abs(self.residual) > math.log(MOST_OFF):
            raise UserError(
                f"job {self.job!r} achieved {shown(self.achieved_per_s)} and {shown(self.predicted_per_s)} was predicted",
                "state both in one unit: they differ by more than a factor of a million",
            )

    @property
    def residual(self) -> float:
        """log(achieved / predicted throughput)."""
        return math.log(self.achieved_per_s) - math.log(self.predicted_per_s)


@dataclass(frozen=True)
class LenderVerdict:
    """Verdict on one lender.

    Attributes:
        lender: its name. ``jobs``: number compared. ``left_out``: jobs of models that no other lender ran.
        others: number of lenders that it was compared with.
        delivered: achieved over predicted throughput, the geometric mean without the models' bias; NaN: not judged.
        error: standard error of log ``delivered``.
        chance: probability that an honest lender seems this slow or slower. ``chance_any``: for any of the judged lenders.
        throttles: True beyond k standard errors.
        finds: the smallest throttled share that the test finds with probability ``POWER``.
        alarm_at: the job, from 1, at which the running test first alarms; None: never. It takes the models' bias from all jobs,
            and allows one standard error in the lender's favour.
    """

    lender: str
    jobs: int
    left_out: int
    others: int
    delivered: float = math.nan
    error: float = math.nan
    chance: float = 1.0
    chance_any: float = 1.0
    throttles: bool = False
    finds: float = 1.0
    alarm_at: int | None = None

    @property
    def is_judged(self) -> bool:
        """True if any of its jobs could be compared."""
        return self.jobs > 0

    def __str__(self) -> str:
        if not self.is_judged:
            why = "no other site ran its models" if self.left_out else "it ran no job"
            return f"site {self.lender} cannot be judged: {why}"
        over = f"over {_counted(self.jobs, 'job')}"
        if self.left_out:
            over += f" ({self.left_out} more left out: no other site ran their models)"
        amount = f"{_percent(abs(1 - self.delivered))} {'less' if self.delivered < 1 else 'more'} than predicted"
        if not self.throttles and amount.startswith("0 %"):
            found = _percent(self.finds)
            return (
                f"site {self.lender} delivers what was predicted {over}; throttling by {found} would be found nine times in ten"
            )
        if self.throttles:
            alone = "; it was compared with one other site alone, and either may differ" if self.others == 1 else ""
            odds = _odds(self.chance_any)
            return f"site {self.lender} delivers {amount} {over}; chance alone gives that {odds}{alone}"
        return (
            f"site {self.lender} delivers {amount} {over}, which chance can explain; "
            f"throttling by {_percent(self.finds)} would be found nine times in ten"
        )


@dataclass(frozen=True)
class Audit:
    """The verdicts, by lender in the order of their names.

    Attributes:
        k: standard errors beyond which a lender throttles.
        rate: false alarms for one lender. ``rate_any``: for all judged lenders together.
        scatter: scatter of the jobs of one model at one lender over their sigma; NaN: no two jobs of one kind.
        is_sigma_low: True if they scatter more than chance explains, so that false alarms are more frequent than stated.
    """

    verdicts: tuple[LenderVerdict, ...]
    k: float
    rate: float
    rate_any: float
    scatter: float
    is_sigma_low: bool

    @property
    def throttling(self) -> tuple[str, ...]:
        """Names of the lenders that throttle."""
        return tuple(verdict.lender for verdict in self.verdicts if verdict.throttles)

    @property
    def judged(self) -> int:
        """Number of lenders that could be compared."""
        return sum(verdict.is_judged for verdict in self.verdicts)

    def __str__(self) -> str:
        judged = self.judged
        lines = [*map(str, self.verdicts)]
        if not judged:
            return "\n".join([*lines, "an audit compares sites: give jobs of one model at two sites or more"])
        honest = "an honest site" if judged == 1 else f"of {judged} honest sites one"
        lines.append(f"{honest} is blamed wrongly {_odds(self.rate_any, 'audits')}")
        if self.is_sigma_low:
            more = _odds(false_alarm_rate(self.k / self.scatter, judged), "audits")
            lines.append(f"jobs scatter {self.scatter:.1f} times as widely as sigma says: rather {more}")
        return "\n".join(lines)


def audit(
    records: Sequence[JobSpeed],
    k: float | None = None,
    *,
    lenders: Collection[str] | None = None,
    is_centred: bool = True,
    shared_sigma: float = 0.0,
    throttled: float = 0.1,
) -> Audit:
    """Test each lender.

    Args:
        records: the jobs, in the order of their ends.
        k: standard errors; None: the k with a rate of ``FALSE_ALARMS`` for all lenders together.
        lenders: all sites that may be named; None: those of the records.
        is_centred: False assumes unbiased predictions, so that a single lender can be judged.
        shared_sigma: standard deviation of an error that all jobs of one model at one lender share. It never averages out.
        throttled: the share that the running test is designed for.

    Raises:
        UserError: no jobs, an unknown lender, or a number out of its range.
    """
    if not records:
        raise UserError("an audit of no jobs", "give jobs with achieved and predicted throughput")
    names = sorted({record.lender for record in records} if lenders is None else lenders)
    stranger = next((record.lender for record in records if record.lender not in names), None)
    if stranger is not None:
        raise unknown("lender", stranger, names)
    if shared_sigma:
        _check_positive("shared_sigma", shared_sigma)
    models = sorted({record.model for record in records})
    jobs = _Jobs(
        np.array([record.residual for record in records]),
        np.array([record.sigma for record in records], dtype=float),
        np.array([names.index(record.lender) for record in records]),
        np.array([models.index(record.model) for record in records]),
    )
    comparable = [lender for lender in range(len(names)) if not is_centred or jobs.comparable(lender, set()).any()]
    if k is None:
        k = k_for(FALSE_ALARMS, max(len(comparable), 1))
    elif _check_positive("k", k) > MOST_K:
        raise UserError(f"k: {shown(k)}", f"give standard errors above 0, up to {MOST_K:g}")
    verdicts: dict[int, LenderVerdict] = {}
    found: set[int] = set()
    while True:
        for lender in set(range(len(names))) - found:
            verdict = jobs.judge(names, lender, found, k, len(comparable), is_centred, shared_sigma, throttled)
            if lender not in verdicts or verdict.is_judged:
                verdicts[lender] = verdict
        new = {lender for lender, verdict in verdicts.items() if verdict.throttles} - found
        if not new:
            break
        found |= new
    scatter, is_low = jobs.scatter()
    ordered = tuple(verdicts[lender] for lender in range(len(names)))
    rates = false_alarm_rate(k), false_alarm_rate(k, max(len(comparable), 1))
    return Audit(ordered, k, *rates, scatter, is_low)


def false_alarm_rate(k: float, lenders: int = 1, jobs: float = math.inf, kurtosis: float = 0.0) -> float:
    """Return the probability that at least one of several honest lenders is blamed, at k standard errors.

    One lender: the normal tail, and the first term of Edgeworth's series for symmetric residuals of a given excess kurtosis
    (Abramowitz and Stegun 26.2.47). It matters for few jobs. For t with 5 degrees it gives 0.27 % at 10 jobs and k 3.09; the
    simulation gives 0.20 %. Several: 1 - (1 - p)^lenders, exact if independent; at most lenders times p in each case.

    Raises:
        UserError: k, lenders or jobs not positive, or a kurtosis below -2.
    """
    _check_positive("k", k)
    _check_positive("number of lenders", lenders)
    if math.isnan(jobs) or jobs < 1 or not kurtosis >= -2:
        raise UserError(f"{shown(jobs)} jobs with kurtosis {shown(kurtosis)}", "give 1 job or more, and -2 or more")
    tail = float(norm.sf(k) + norm.pdf(k) * (k**3 - 3 * k) * kurtosis / 24 / jobs)
    return float(-np.expm1(lenders * np.log1p(-min(max(tail, 0.0), 1 - 1e-12))))


def k_for(rate: float, lenders: int = 1) -> float:
    """Return the k at which several honest lenders together have this rate of false alarms, for normal residuals.

    Raises:
        UserError: a rate outside 0 to 1, or 0.5 and more for one lender: then k is not positive.
    """
    _check_share("rate of false alarms", rate)
    _check_positive("number of lenders", lenders)
    return _check_positive("k of this rate", float(norm.isf(-np.expm1(np.log1p(-rate) / lenders))))


def run_length(shift: float, allowance: float, threshold: float) -> float:
    """Return the mean number of jobs until a one-sided CUSUM raises an alarm: S = max(0, S + z - allowance) > threshold, z
    normal around ``shift``.

    Page's integral equation for the mean run length (Biometrika 1954), solved at Gauss-Legendre nodes. All are in standard
    deviations of one job. Infinite beyond 1e14. Raises UserError if allowance or threshold is not positive.
    """
    for name, value in (("allowance", allowance), ("threshold", threshold)):
        _check_positive(name, value)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    at, weights = np.append(0.0, threshold * (nodes + 1) / 2), np.append(0.0, threshold * weights / 2)
    moved = allowance - shift - at
    steps = norm.pdf(at[None, :] + moved[:, None]) * weights
    steps[:, 0] += norm.cdf(moved)  # back to 0
    try:
        length = float(np.linalg.solve(np.eye(len(at)) - steps, np.ones(len(at)))[0])
    except np.linalg.LinAlgError:  # it always returns to 0
        return math.inf
    return length if 0 < length < _ENDLESS else math.inf  # beyond that the equations are singular to the last digit


def cusum_threshold(allowance: float, jobs: float = JOBS_BETWEEN_ALARMS) -> float:
    """Return the threshold for a mean number of jobs between false alarms of the honest. Raises UserError below 10."""
    _check_positive("allowance", allowance)
    if not 10 <= jobs <= 1e9:
        raise UserError(f"{shown(jobs)} jobs between false alarms", "give 10 to 1e9")

    return _threshold(float(allowance), float(jobs))


@cache
def _threshold(allowance: float, jobs: float) -> float:
    def excess(threshold: float) -> float:
        return math.log(run_length(0.0, allowance, threshold) / jobs)

    least = high = 1e-6
    while excess(high) < 0:
        high = 1.5 * high + 1
    return float(brentq(excess, least, high, xtol=1e-6)) if high > least else least


@dataclass(frozen=True)
class _Jobs:
    """Residuals, sigmas, and places of lenders and models, each of shape (jobs,)."""

    residual: Array
    sigma: Array
    lender: Ints
    model: Ints

    def comparable(self, lender: int, found: set[int]) -> Bools:
        """Return which jobs of a lender have a model that others ran too."""
        models = np.unique(self.model[self.others(lender, found)])
        chosen: Bools = (self.lender == lender) & np.isin(self.model, models)
        return chosen

    def others(self, lender: int, found: set[int]) -> Bools:
        """Return the jobs that a lender is compared with."""
        chosen: Bools = ~np.isin(self.lender, [lender, *found])
        return chosen

    def judge(
        self,
        names: Sequence[str],
        lender: int,
        found: set[int],
        k: float,
        judged: int,
        is_centred: bool,
        shared: float,
        throttled: float,
    ) -> LenderVerdict:
        own = self.lender == lender
        chosen = self.comparable(lender, found) if is_centred else own
        count, left_out = int(chosen.sum()), int(own.sum() - chosen.sum())
        others = self.others(lender, found) & np.isin(self.model, self.model[chosen])
        compared = len(np.unique(self.lender[others])) if is_centred else 0
        if not count:
            return LenderVerdict(names[lender], 0, left_out, compared)
        residual, weight = self.residual[chosen].copy(), self.sigma[chosen] ** -2
        variance, doubt = 1 / weight.sum(), np.zeros(count)
        for model in np.unique(self.model[chosen]):
            here = self.model[chosen] == model
            error = shared**2
            if is_centred:
                there = others & (self.model == model)
                residual[here] -= _weighted_median(self.residual[there], 1 / self.sigma[there])
                error += self._median_variance(there, shared)
            doubt[here] = math.sqrt(error)
            variance += (weight[here].sum() / weight.sum()) ** 2 * error
        mean, deviation = float(weight @ residual / weight.sum()), math.sqrt(variance)
        chance = float(norm.cdf(mean / deviation))
        return LenderVerdict(
            names[lender],
            count,
            left_out,
            compared,
            math.exp(mean),
            deviation,
            chance,
            float(-np.expm1(judged * np.log1p(-min(chance, 1 - 1e-12)))),
            mean < -k * deviation,
            -math.expm1(-(k + float(norm.ppf(POWER))) * deviation),
            _alarm(residual + doubt, self.sigma[chosen], throttled),
        )

    def _median_variance(self, there: Bools, shared: float) -> float:
        """Return the variance of the weighted median of these residuals, with weights 1 / sigma."""
        weight = self.sigma[there] ** -2
        parts = np.bincount(self.lender[there], weights=weight) / weight.sum()
        return _median_factor(int(there.sum())) * float(1 / weight.sum() + shared**2 * (parts**2).sum())

    def scatter(self) -> tuple[float, bool]:
        """Return the root mean square of residuals around the mean of their model at their lender, over sigma. Also return
        whether it exceeds 1 by more than chance (1 %), with tails as heavy as measured.
        """
        cells = self.lender * (int(self.model.max()) + 1) + self.model
        weight, squares, free = self.sigma**-2, 0.0, 0
        for cell in np.unique(cells):
            here = cells == cell
            mean = np.average(self.residual[here], weights=weight[here])
            squares += float(weight[here] @ (self.residual[here] - mean) ** 2)
            free += int(here.sum()) - 1
        if not free:
            return math.nan, False
        ratio = squares / free
        return math.sqrt(ratio), ratio > 1 + float(norm.isf(0.01)) * math.sqrt((2 + MEASURED_KURTOSIS) / free)


def _alarm(residual: Array, sigma: Array, throttled: float) -> int | None:
    """Return the first job, from 1, at which the CUSUM of log likelihood ratios passes its threshold."""
    _check_share("throttled share", throttled)
    shift = -math.log1p(-throttled) / sigma
    usual = float(np.median(shift))
    threshold, total = cusum_threshold(usual / 2) * usual, 0.0
    for place, ratio in enumerate(shift * (-residual / sigma - shift / 2), start=1):
        total = max(0.0, total + float(ratio))
        if total > threshold:
            return place
    return None


def _weighted_median(values: Array, weights: Array) -> float:
    """Return the weighted median: half of the weight lies below it and half above."""
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    half = total[-1] / 2
    low = int(np.searchsorted(total, half * (1 - 1e-12)))
    high = min(int(np.searchsorted(total, half * (1 + 1e-12), side="right")), len(values) - 1)
    return float(values[order[low]] + values[order[high]]) / 2


def _median_factor(count: int) -> float:
    """Return the variance of the median of normal values over that of their mean: 1 for one value, pi / 2 for many."""
    return math.pi / 2 * count / (count + math.pi / 2 - 1)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0095 or share < 0.0005 else f"{100 * share:.1f} %"


def _odds(chance: float, of: str = "") -> str:
    """Format a probability: ``once in 3,000 audits``, or ``in 40 % of audits`` if it is large."""
    if chance > 0.15:
        return f"in {_percent(chance)} of {of or 'cases'}"
    text = f"once in {float(f'{1 / chance:.1g}'):,.0f}" if chance > 1e-6 else "less than once in a million"
    return f"{text} {of}".rstrip()


def _check_positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < math.inf:
        raise UserError(f"{name}: {shown(value)}", "give a positive number")
    return float(value)


def _check_share(name: str, value: object) -> None:
    if _check_positive(name, value) >= 1:
        raise UserError(f"{name}: {shown(value)}", "give a share between 0 and 1")
