"""A lender that throttles is found, and honest ones are blamed as rarely as is said."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.array_types import Array
from paceline.errors import UserError
from paceline.market.ledger.audit import (
    LEAST_SIGMA,
    MEASURED_KURTOSIS,
    MEASURED_SIGMA,
    MOST_K,
    MOST_SIGMA,
    Audit,
    JobSpeed,
    _median_factor,
    _weighted_median,
    audit,
    cusum_threshold,
    false_alarm_rate,
    k_for,
    run_length,
)

JOBS_TO_FIND = {0.05: 84, 0.1: 20, 0.2: 5}
"""Jobs until a throttled share is found nine times in ten, at sigma 0.13 and one false alarm in 100."""
JOBS_UNTIL_ALARM = {0.05: 73, 0.1: 22, 0.2: 6}
"""Mean jobs until the running test alarms, at sigma 0.13 and 10,000 jobs between false alarms."""
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
NOBODY: Mapping[str, float] = {}


def noise(rng: np.random.Generator, shape: int | tuple[int, int], degrees: int | None) -> Array:
    """Residuals of unit variance: normal, or Student's t."""
    if degrees is None:
        return rng.standard_normal(shape)
    return rng.standard_t(degrees, shape) / math.sqrt(degrees / (degrees - 2))


def federation(
    rng: np.random.Generator,
    slow: Mapping[str, float] = NOBODY,
    sites: str = "ABCDEFGHIJ",
    each: int = 40,
    models: int = 5,
    sigma: float = MEASURED_SIGMA,
    shared: float = 0.0,
) -> list[JobSpeed]:
    """Jobs in turn at each site, of models that are predicted wrongly by up to 50 % everywhere."""
    bias = rng.uniform(-0.4, 0.4, models)
    places = rng.normal(0, shared, (len(sites), models)) if shared else np.zeros((len(sites), models))
    chosen, errors = rng.integers(models, size=(each, len(sites))), sigma * noise(rng, (each, len(sites)), None)
    return [
        JobSpeed(
            f"{site}{i}", f"m{m}", site, 50 * math.exp(bias[m] + places[at, m] + errors[i, at]) * (1 - slow.get(site, 0)), 50.0
        )
        for i in range(each)
        for at, site in enumerate(sites)
        for m in [int(chosen[i, at])]
    ]


def exact(residuals: Mapping[str, Sequence[float]], model: str = "m", sigma: float = 0.1) -> list[JobSpeed]:
    """Jobs with given residuals, by site."""
    return [
        JobSpeed(f"{site}{i}", model, site, 8 * math.exp(value), 8.0, sigma)
        for site, values in residuals.items()
        for i, value in enumerate(values)
    ]


def within(hits: float, expected: float, count: int) -> bool:
    """Whether so many of ``count`` lie within four standard errors of the expected share."""
    return abs(hits / count - expected) < 4 * math.sqrt(expected * (1 - expected) / count)


def errors_of(file: str, key: str, error: str = "error") -> dict[str, list[float]]:
    """Residuals of throughput by model: log(predicted / measured step)."""
    residuals = defaultdict(list)
    with (RESULTS / file).open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            residuals[row[key].split(",")[0]].append(math.log1p(float(row[error])))
    return residuals


def test_sigma_is_between_those_of_real_steps() -> None:
    (steps,) = errors_of("predict_lab.csv", "network", "plain_error").values()
    assert len(steps) == 36 and statistics.stdev(steps) == pytest.approx(0.10, abs=0.005)
    mean, deviation = statistics.fmean(steps), statistics.pstdev(steps)
    kurtosis = statistics.fmean(((step - mean) / deviation) ** 4 for step in steps) - 3
    assert kurtosis == pytest.approx(1.8, abs=0.05) and kurtosis < MEASURED_KURTOSIS
    assert 0.10 < MEASURED_SIGMA < 0.16
    degrees = 4 + 6 / MEASURED_KURTOSIS
    assert degrees == pytest.approx(5.4, abs=0.05)  # degrees of the t with that kurtosis
    runs = errors_of("unseen_runs.csv", "run")
    every = [value for values in runs.values() for value in values]
    spread = sum((value - statistics.fmean(values)) ** 2 for values in runs.values() for value in values)
    assert statistics.stdev(every) == pytest.approx(0.14, abs=0.005)
    assert math.sqrt(spread / (len(every) - len(runs))) == pytest.approx(0.11, abs=0.005)


@pytest.mark.long
def test_false_alarms_of_one_lender_by_simulation() -> None:
    rng, count = np.random.default_rng(3), 200_000
    rates: dict[tuple[int | None, int, float], float] = {}
    for degrees in (None, 5, 3):
        for jobs in (10, 40):
            means = np.concatenate([noise(rng, (count // 8, jobs), degrees).mean(axis=1) for _ in range(8)]) * math.sqrt(jobs)
            for k in (2.326, 3.09):
                rates[degrees, jobs, k] = float((means < -k).mean())
    for jobs in (10, 40):
        assert within(count * rates[None, jobs, 2.326], false_alarm_rate(2.326), count)
        assert within(count * rates[None, jobs, 3.09], false_alarm_rate(3.09), count)
        assert rates[3, jobs, 2.326] < 1.3 * 0.01  # heavy tails matter little at 1 %
        assert rates[3, jobs, 3.09] > 2 * 0.001  # and much beyond
        assert rates[5, jobs, 3.09] == pytest.approx(false_alarm_rate(3.09, 1, jobs, kurtosis=6), rel=0.4)
    assert rates[5, 10, 3.09] > 1.6 * 0.001


@pytest.mark.long
def test_false_alarms_of_all_lenders_by_whole_audits() -> None:
    rng, count, k = np.random.default_rng(4), 200, k_for(0.1, 10)
    found = [audit(federation(rng), k).throttling for _ in range(count)]
    assert within(sum(map(bool, found)), 0.1, count)
    assert within(sum(map(len, found)), false_alarm_rate(k), 10 * count)


@pytest.mark.long
def test_a_throttling_lender_does_not_bring_the_others_into_disrepute() -> None:
    rng, count, k = np.random.default_rng(5), 150, k_for(0.1, 6)
    found = [audit(federation(rng, {"C": 0.25}, "ABCDEF"), k).throttling for _ in range(count)]
    assert all("C" in names for names in found)
    blamed = sum(len(names) > 1 for names in found)
    assert blamed / count < 0.1 + 4 * math.sqrt(0.1 * 0.9 / count)


@pytest.mark.long
def test_an_error_that_jobs_share_is_counted_where_it_is_told() -> None:
    rng, count, k = np.random.default_rng(6), 150, k_for(0.1, 5)
    blamed = {0.0: 0, 0.15: 0}
    for _ in range(count):
        jobs = federation(rng, sites="ABCDE", models=3, shared=0.15)
        for told in blamed:
            blamed[told] += bool(audit(jobs, k, shared_sigma=told).throttling)
    assert blamed[0.15] / count < 0.1 + 4 * math.sqrt(0.1 * 0.9 / count) < 0.5 < blamed[0.0] / count


def test_rates_and_k() -> None:
    assert false_alarm_rate(3) == pytest.approx(0.0013499, abs=1e-7)  # the normal table
    assert false_alarm_rate(3, 10) == pytest.approx(1 - (1 - 0.0013499) ** 10, rel=1e-4)
    assert k_for(0.01) == pytest.approx(2.3263, abs=1e-4) and k_for(0.01, 10) == pytest.approx(3.0889, abs=1e-4)


@pytest.mark.parametrize("k", [2.0, 2.326, 3.09])
def test_the_tail_of_few_jobs_is_that_of_sums_of_uniform_numbers(k: float) -> None:
    """Their excess kurtosis is -1.2, and the tail of 12 of them has a closed form (Irwin and Hall)."""
    reach = 6 - k  # the sum of 12 has variance 1
    tail = sum((-1) ** i * math.comb(12, i) * (reach - i) ** 12 for i in range(math.floor(reach) + 1)) / math.factorial(12)
    assert false_alarm_rate(k, 1, 12, -1.2) == pytest.approx(tail, rel=0.02)
    assert false_alarm_rate(k) != pytest.approx(tail, rel=0.02)


@given(st.floats(1e-9, 0.49), st.integers(1, 50))
def test_k_is_the_inverse_of_the_rate(rate: float, lenders: int) -> None:
    assert false_alarm_rate(k_for(rate, lenders), lenders) == pytest.approx(rate, rel=1e-6)


def test_jobs_to_find_throttling() -> None:
    rng, count, k = np.random.default_rng(7), 20_000, k_for(0.01)
    for share, jobs in JOBS_TO_FIND.items():
        for n, is_enough in ((jobs, True), (jobs - 1, False)):
            means = noise(rng, (count, n), None).mean(axis=1) * MEASURED_SIGMA + math.log(1 - share)
            power = float((means < -k * MEASURED_SIGMA / math.sqrt(n)).mean())
            assert (power > 0.9 - 0.009) if is_enough else (power < 0.9 + 0.009)


@pytest.mark.long
def test_whole_audits_find_what_they_say() -> None:
    rng, count, k = np.random.default_rng(8), 120, k_for(0.01)
    jobs = 24  # 20, and more for the error of the medians of nine other lenders
    audits = [audit(federation(rng, {"D": 0.1}, each=jobs, models=1), k) for _ in range(count)]
    assert within(sum("D" in one.throttling for one in audits), 0.9, count)
    assert statistics.fmean(one.verdicts[3].finds for one in audits) == pytest.approx(0.1, abs=0.003)
    assert statistics.fmean(math.log(one.verdicts[3].delivered) for one in audits) == pytest.approx(math.log(0.9), abs=0.01)


def test_a_model_that_is_predicted_wrongly_everywhere_blames_nobody() -> None:
    wrong = exact({"A": [-0.5, -0.48, -0.52], "B": [-0.5, -0.51], "C": [-0.49, -0.5]})
    assert audit(wrong).throttling == ()
    assert audit(wrong, is_centred=False).throttling == ("A", "B", "C")


def test_two_of_four_that_throttle_do_not_hide_one_another() -> None:
    jobs = exact({"A": [-0.2] * 90, "B": [-0.1] * 40, "C": [0.0, 0.01] * 20, "D": [0.01, -0.01] * 20}, sigma=0.13)
    assert audit(jobs, 3.0).throttling == ("A", "B")
    only_b = [job for job in jobs if job.lender != "A"]
    assert audit(only_b, 3.0).throttling == ("B",)


def test_the_figures_of_a_verdict_by_hand() -> None:
    found = audit(exact({"A": [-0.1, -0.2, -0.3], "B": [0.0, 0.1], "C": [0.2]}), 2.0)
    a = found.verdicts[0]
    factor = math.pi / 2 * 3 / (3 + math.pi / 2 - 1)
    assert math.log(a.delivered) == pytest.approx(-0.2 - 0.1)
    assert a.error == pytest.approx(0.1 * math.sqrt(1 / 3 + factor / 3))
    assert a.chance == pytest.approx(statistics.NormalDist().cdf(-0.3 / a.error))
    assert (a.jobs, a.left_out, a.others, a.throttles) == (3, 0, 2, True)
    assert found.verdicts[1].others == 1 and math.log(found.verdicts[1].delivered) == pytest.approx(
        0.05 - 0.2
    )  # A was found, and counts no more
    shared = audit(exact({"A": [-0.1, -0.2, -0.3], "B": [0.0, 0.1], "C": [0.2]}), 2.0, shared_sigma=0.05).verdicts[0]
    parts = 1 / 3 * 0.1**2 + 0.05**2 * ((2 / 3) ** 2 + (1 / 3) ** 2)
    assert shared.error == pytest.approx(math.sqrt(0.1**2 / 3 + 0.05**2 + factor * parts))
    weighted = audit([*exact({"A": [-0.1]}, sigma=0.1), *exact({"A": [-0.4]}, sigma=0.2)], is_centred=False).verdicts[0]
    assert math.log(weighted.delivered) == pytest.approx((-0.1 * 100 - 0.4 * 25) / 125)
    assert weighted.error == pytest.approx(1 / math.sqrt(125))


@pytest.mark.long
@given(st.integers(0, 2**32), st.floats(0.01, 100), st.floats(0.01, 100))
def test_units_and_the_bias_of_a_model_do_not_matter(seed: int, unit: float, bias: float) -> None:
    rng = np.random.default_rng(seed)
    jobs = federation(rng, {"B": 0.2}, "ABCD", each=8, models=2)
    moved = [
        replace(
            job,
            achieved_per_s=job.achieved_per_s * unit,
            predicted_per_s=job.predicted_per_s * unit * (bias if job.model == "m1" else 1),
        )
        for job in jobs
    ]
    for one, other in zip(audit(jobs).verdicts, audit(moved).verdicts, strict=True):
        assert (one.delivered, one.error) == pytest.approx((other.delivered, other.error), rel=1e-6)
    shuffled = audit([jobs[i] for i in rng.permutation(len(jobs))])
    for one, other in zip(audit(jobs).verdicts, shuffled.verdicts, strict=True):
        assert (one.delivered, one.error, one.chance) == pytest.approx((other.delivered, other.error, other.chance), rel=1e-6)


@given(st.lists(st.tuples(st.integers(-20, 20), st.integers(1, 5)), min_size=1, max_size=12))
def test_the_weighted_median_is_that_of_repeated_values(pairs: list[tuple[int, int]]) -> None:
    values, weights = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    assert _weighted_median(values, weights) == statistics.median([value for value, times in pairs for _ in range(times)])


@pytest.mark.parametrize("count", [1, 3, 5, 9, 41])
def test_the_variance_of_a_median_by_simulation(count: int) -> None:
    medians = np.median(noise(np.random.default_rng(9), (100_000, count), None), axis=1)
    assert medians.var() * count == pytest.approx(_median_factor(count), rel=0.04)


def test_run_lengths_of_the_published_table() -> None:
    """Two-sided CUSUM with allowance 0.5, shifts of 0 to 4: Lucas and Crosier, Technometrics 1982, as textbooks quote it."""
    shifts = (0, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 4)
    table = {
        4: (168, 74.2, 26.6, 13.3, 8.38, 4.75, 3.34, 2.62, 2.19, 1.71),
        5: (465, 139, 38.0, 17.0, 10.4, 5.75, 4.01, 3.11, 2.57, 2.01),
    }
    for threshold, row in table.items():
        both = [1 / (1 / run_length(shift, 0.5, threshold) + 1 / run_length(-shift, 0.5, threshold)) for shift in shifts]
        assert both == pytest.approx(row, rel=0.005)


@pytest.mark.everyday("None-0.96-1.04")
@pytest.mark.parametrize(("degrees", "low", "high"), [(None, 0.96, 1.04), (5, 0.5, 0.75)])
def test_run_lengths_by_simulation(degrees: int | None, low: float, high: float) -> None:
    """Heavy tails bring the running test's false alarms one and a half times as often."""
    allowance, rng, runs = 0.6, np.random.default_rng(10), 12_000
    threshold = cusum_threshold(allowance, 300)
    total, lengths, going = np.zeros(runs), np.zeros(runs), np.ones(runs, dtype=bool)
    while going.any():
        lengths += going
        total = np.maximum(0, total + noise(rng, runs, degrees) - allowance)
        going &= total <= threshold
    assert low < lengths.mean() / 300 < high


@pytest.mark.parametrize("share", JOBS_UNTIL_ALARM)
def test_jobs_until_the_running_test_alarms(share: float) -> None:
    shift = -math.log1p(-share) / MEASURED_SIGMA
    assert round(run_length(shift, shift / 2, cusum_threshold(shift / 2))) == JOBS_UNTIL_ALARM[share]
    assert run_length(0, shift / 2, cusum_threshold(shift / 2)) == pytest.approx(10_000, rel=1e-3)


def test_the_running_test_names_the_job_where_throttling_shows() -> None:
    rng = np.random.default_rng(11)
    jobs = federation(rng, sites="ABCDEF", each=80)
    late = [
        replace(job, achieved_per_s=0.8 * job.achieved_per_s) if job.lender == "B" and i >= 240 else job
        for i, job in enumerate(jobs)
    ]
    found = audit(late)
    at = found.verdicts[1].alarm_at
    assert at is not None and 40 < at <= 60
    assert [verdict.alarm_at for verdict in found.verdicts if verdict.lender != "B"] == [None] * 5


@pytest.mark.long
def test_the_running_test_needs_about_as_many_jobs_as_is_said() -> None:
    """A few more than ``JOBS_UNTIL_ALARM``: the bias of the models is known from a few hundred jobs, not exactly."""
    rng = np.random.default_rng(13)
    at = [audit(federation(rng, {"B": 0.2}), throttled=0.2).verdicts[1].alarm_at or 40 for _ in range(60)]
    assert JOBS_UNTIL_ALARM[0.2] - 1 < statistics.fmean(at) < 1.6 * JOBS_UNTIL_ALARM[0.2]


def test_words_that_an_owner_understands() -> None:
    jobs = exact({"A": [-0.128] * 40, "B": [0.0] * 40, "C": [-0.01] * 40}, sigma=0.2)
    jobs += [JobSpeed("x", "alone", "C", 1.0, 9.0), JobSpeed("y", "lonely", "D", 1.0, 9.0)]
    found = audit(jobs, 2.0, lenders="ABCDE")
    assert str(found).splitlines() == [
        "site A delivers 12 % less than predicted over 40 jobs; chance alone gives that once in 200",
        "site B delivers 1 % more than predicted over 40 jobs, which chance can explain; "
        "throttling by 15 % would be found nine times in ten",
        "site C delivers 1 % less than predicted over 40 jobs (1 more left out: no other site ran their models), which chance "
        "can explain; throttling by 15 % would be found nine times in ten",
        "site D cannot be judged: no other site ran its models",
        "site E cannot be judged: it ran no job",
        "of 3 honest sites one is blamed wrongly once in 10 audits",
    ]
    two = audit(exact({"A": [-0.3] * 9, "B": [0.0] * 9}), 2.0)
    assert str(two).splitlines()[0] == (
        "site A delivers 26 % less than predicted over 9 jobs; chance alone gives that less than once in a million; "
        "it was compared with one other site alone, and either may differ"
    )


def test_words_where_nobody_can_be_compared_or_many_are_blamed() -> None:
    for alone in ({"A": [-0.3] * 9}, {"A": [0.0]}):
        found = audit(exact(alone))
        assert found.judged == 0 and not found.throttling
        assert str(found).splitlines() == [
            "site A cannot be judged: no other site ran its models",
            "an audit compares sites: give jobs of one model at two sites or more",
        ]
    assert str(audit(exact({"A": [0.0] * 9}), is_centred=False)).splitlines() == [
        "site A delivers what was predicted over 9 jobs; throttling by 11 % would be found nine times in ten",
        "an honest site is blamed wrongly once in 100 audits",
    ]
    often = audit(exact({"A": [0.001], "B": [0.0]}), 0.1)
    assert str(often).splitlines()[-1] == "of 2 honest sites one is blamed wrongly in 71 % of audits"


@pytest.mark.parametrize("sigmas", [(LEAST_SIGMA, LEAST_SIGMA), (MOST_SIGMA, MOST_SIGMA), (LEAST_SIGMA, MOST_SIGMA)])
@pytest.mark.parametrize("off", [-13.8, 0.0, 13.8])
@pytest.mark.filterwarnings("error")
def test_the_widest_numbers_that_are_legal_are_judged(sigmas: tuple[float, float], off: float) -> None:
    jobs = [
        JobSpeed(f"{lender}{n}", "net", lender, math.exp(off if lender == "A" else 0), 1.0, sigma)
        for lender in "ABC"
        for n, sigma in enumerate(sigmas)
    ]
    for k in (1e-300, 2.3, MOST_K):
        found = audit(jobs, k)
        assert found.judged == 3 and "nan" not in str(found) and "inf" not in str(found)


def test_jobs_that_scatter_more_widely_than_sigma_says() -> None:
    rng = np.random.default_rng(12)

    def tested(sigma: float) -> Audit:
        return audit([replace(job, sigma=0.13) for job in federation(rng, sigma=sigma)])

    assert not tested(0.13).is_sigma_low
    wide = tested(0.26)
    assert wide.is_sigma_low and wide.scatter == pytest.approx(2, abs=0.2)
    last = str(wide).splitlines()[-1]
    assert last == f"jobs scatter {wide.scatter:.1f} times as widely as sigma says: rather in 52 % of audits"
    assert math.isnan(audit(exact({"A": [0.1], "B": [0.0]})).scatter)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"achieved_per_s": 0.0}, r"achieved_per_s of job 'j': 0.0; give a positive number"),
        (
            {"achieved_per_s": 5e-324, "predicted_per_s": 1e308},
            "job 'j' achieved 5e-324 and 1e.308 was predicted; state both in one",
        ),
        ({"sigma": 1e-6}, "sigma of job 'j': 1e-06; give a number from 0.001 to 10"),
        ({"lender": "A\nB"}, r"lender 'A\\nB' of an audited job; give at most 200 printable letters"),
        ({"achieved_per_s": math.nan}, "achieved_per_s of job 'j': nan"),
        ({"predicted_per_s": -1.0}, "predicted_per_s of job 'j': -1.0"),
        ({"predicted_per_s": math.inf}, "predicted_per_s of job 'j': inf"),
        ({"sigma": 0.0}, "sigma of job 'j': 0.0"),
        ({"sigma": "0.1"}, "sigma of job 'j': '0.1'"),
        ({"lender": ""}, "lender '' of an audited job"),
    ],
)
def test_mistakes_in_a_job(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(JobSpeed("j", "m", "A", 1.0, 1.0), **changes)  # type: ignore[arg-type]


def test_mistakes_in_questions() -> None:
    jobs = exact({"site A": [0.0, 0.1], "site B": [0.0]})
    with pytest.raises(UserError, match="an audit of no jobs; give jobs with"):
        audit([])
    with pytest.raises(UserError, match=r"unknown lender 'site B'.*site C"):
        audit(jobs, lenders=["site A", "site C"])
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(UserError, match=r"k: .*give a positive number"):
            audit(jobs, wrong)
        with pytest.raises(UserError, match=r"k: .*give a positive number"):
            false_alarm_rate(wrong)
    for share in (0.0, 1.0, 1.5, math.nan):
        with pytest.raises(UserError, match=r"throttled share: .*give a"):
            audit(jobs, throttled=share)
    with pytest.raises(UserError, match="k of this rate: -"):
        k_for(0.6)
    with pytest.raises(UserError, match="5 jobs between false alarms; give 10"):
        cusum_threshold(0.5, 5)
    with pytest.raises(UserError, match="0 jobs with kurtosis"):
        false_alarm_rate(3, jobs=0)
    with pytest.raises(UserError, match=r"shared_sigma: -0.1"):
        audit(jobs, shared_sigma=-0.1)
    with pytest.raises(UserError, match="threshold: 0"):
        run_length(0, 0.5, 0)
