"""Samples to a target: the curve is found again, is never extrapolated in silence, and penalties are measured or unknown."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from paceline.errors import UserError
from paceline.prediction.learning import convergence
from paceline.prediction.learning.convergence import Convergence, Point, fit
from paceline.record import RunRecord
from paceline.strategy import COMPRESSIONS
from paceline.strategy.recipe import reference_points
from paceline.workload import names

ROOT = Path(__file__).parents[3]
MLPERF = Path(os.environ.get("PACELINE_SHARED", ROOT.parent / "shared")) / "data/measured/mlperf_training.csv"


def made(emin: float, critical: float, batches: tuple[float, ...], noise: float = 0.0) -> Convergence:
    points = [Point(b, emin * (1 + b / critical) * math.exp(noise * (-1) ** n)) for n, b in enumerate(batches)]
    return fit(points, "99 %", "made up")


@given(st.floats(1e3, 1e9), st.floats(10, 1e5))
def test_the_curve_is_found_again(emin: float, critical: float) -> None:
    curve = made(emin, critical, (critical / 8, critical / 2, 2 * critical, 8 * critical))
    assert curve.min_samples == pytest.approx(emin, rel=1e-6)
    assert curve.critical_batch == pytest.approx(critical, rel=1e-6)
    assert curve.spread == pytest.approx(0, abs=1e-6)


@given(st.lists(st.floats(1e2, 1e8), min_size=3, max_size=8))
def test_constants_are_positive_and_more_batch_never_takes_fewer_samples(seen: list[float]) -> None:
    curve = fit([Point(2.0**n, e) for n, e in enumerate(seen)], "t", "s")
    assert curve.min_samples > 0 and curve.critical_batch > 0
    at = [curve.samples(b) for b in (1, 2, 2 ** (len(seen) - 1))]
    assert at == sorted(at) and all(map(math.isfinite, at))
    low, high = curve.interval(2)
    assert low <= curve.samples(2) <= high


def test_at_the_critical_batch_samples_double_and_steps_halve_nothing_beyond() -> None:
    curve = made(1000, 64, (16, 64, 256, 1024))
    assert curve.samples(64) == pytest.approx(2 * 1000)
    assert curve.steps(64) == math.ceil(2000 / 64 - 1e-9)
    assert curve.steps(1024) / curve.steps(256) > 0.84  # four times the batch hardly saves steps any more


def test_many_runs_at_one_batch_have_one_vote() -> None:
    few = made(1000, 64, (16, 64, 256), noise=0.1)
    points = [Point(b, 1000 * (1 + b / 64) * math.exp(0.1 * (-1) ** n)) for n, b in enumerate((16, 64, 256))]
    many = fit(points + [points[1]] * 50, "99 %", "made up")
    assert many.min_samples == pytest.approx(few.min_samples) and many.critical_batch == pytest.approx(few.critical_batch)


@pytest.mark.parametrize(("accuracy", "epochs"), [(0.5, 1.0), (0.8, 1.0), (0.85, 2.0), (0.9, 3.0)])
def test_a_target_is_reached_between_epochs_but_not_before_the_first_was_judged(accuracy: float, epochs: float) -> None:
    curve = tuple({"epoch": float(n), "accuracy": value} for n, value in ((1, 0.8), (3, 0.9), (4, 0.95)))
    record = replace(samples.record("dense"), curve=curve, epochs=4, steps=400)
    point, batch = convergence.reached(record, accuracy), record.strategy["global_batch_size"]
    assert point and point.samples == pytest.approx(100 * batch * epochs) and point.global_batch_size == batch
    assert convergence.reached(record, 0.96) is None


def test_the_spread_is_that_of_runs_though_the_curve_takes_two_constants_from_them() -> None:
    """Four runs at two batches leave two degrees of freedom: over many sweeps the mean square is that of the runs."""
    noise = np.random.default_rng(5).normal(0, 0.1, (1000, 4))
    sweeps = [
        [Point(b, 1000 * (1 + b / 64) * math.exp(x)) for b, x in zip((16, 16, 256, 256), runs, strict=True)] for runs in noise
    ]
    assert np.mean([fit(sweep, "t", "s").spread ** 2 for sweep in sweeps]) == pytest.approx(0.01, rel=0.15)


def test_it_does_not_extrapolate_in_silence() -> None:
    curve = made(1000, 64, (16, 64, 256))
    with pytest.raises(UserError, match=r"beyond what was seen .* 16 to 256"):
        curve.samples(512)
    assert curve.samples(512, beyond=True) > curve.samples(256)
    assert len(curve.notes(64)) == 1 and "smaller than any" in curve.notes(8)[1]


@pytest.mark.parametrize("points", [[], [Point(8, 100)], [Point(8, 100), Point(8, 110), Point(8, 90)]])
def test_too_few_points_are_refused(points: list[Point]) -> None:
    with pytest.raises(UserError, match="do not say how samples grow"):
        fit(points, "t", "s")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "lacks the columns global_batch, samples_to_target"),
        ("global_batch,samples_to_target\n8,100\n16,many\n", "row 2 .line 3., column samples_to_target: 'many' is not a"),
        ("global_batch,samples_to_target\n8\n", "row 1 .line 2.: 1 values for 2 columns"),
    ],
)
def test_a_bad_csv_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text(text)
    with pytest.raises(UserError, match=said):
        convergence.read_points(tmp_path / "runs.csv")
    with pytest.raises(UserError, match="No such file"):
        convergence.read_points(tmp_path / "none.csv")


def run(compression: str, batch: int, samples_to_half: float, epoch: int = 1000) -> RunRecord:
    """A run whose accuracy grows in a straight line and reaches one half after ``samples_to_half`` samples."""
    curve = tuple({"epoch": n, "accuracy": 0.5 * n * epoch / samples_to_half} for n in range(1, 11))
    record = samples.record(compression)
    strategy = {**record.strategy, "global_batch_size": batch}
    return replace(record, strategy=strategy, steps=10 * epoch // batch, epochs=10, curve=curve)


def test_records_give_the_curve_and_the_measured_penalty() -> None:
    dense = [run("dense", b, 3000 * (1 + b / 100)) for b in (20, 50, 100, 200)]
    lossy = [run("terngrad", b, 1.25 * 3000 * (1 + b / 100)) for b in (20, 100)]
    curve = convergence.from_records([*dense, *lossy], 0.5)
    assert curve.num_points == 4 and curve.min_samples == pytest.approx(3000, rel=0.01)
    assert convergence.measured_penalty(lossy, 0.5, "terngrad", curve) == pytest.approx(1.25, rel=0.01)
    assert convergence.measured_penalty(lossy, 0.5, "int8", curve) is None
    never = [run("terngrad", 20, 1e6)]
    assert convergence.measured_penalty(never, 0.5, "terngrad", curve) == math.inf


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_penalty_is_measured_or_unknown_but_never_silent(compression: str) -> None:
    notes = convergence.accuracy_notes(compression)
    assert (notes == ()) == (compression == "dense")
    assert all("unknown" in note or "never measured" in note for note in notes)


def test_mlperf_has_curves_and_says_where_from() -> None:
    curve = convergence.mlperf("resnet-50")
    assert curve.num_points == 6 and "97 submissions" in curve.source and "unverified" in curve.source
    assert curve.epoch_samples == 1_281_167
    assert 35 < curve.samples(1632) / curve.epoch_samples < 42 and 55 < curve.samples(32768) / curve.epoch_samples < 65
    with pytest.raises(UserError, match="resnet-50"):
        convergence.mlperf("resnet-51")
    for name in ("ssd-resnet34", "mask-rcnn", "unet3d", "gnmt", "bert-large"):
        assert name in names() and convergence.mlperf(name).num_points >= 6


def test_mlperf_s_reference_points_give_the_published_critical_batches() -> None:
    """Worked out by hand before: ResNet-50 33.9 epochs and about 45k, no point 3.1 epochs off; BERT about 12k and 190 steps.

    ``fit`` weighs relative errors; absolute ones give 34.2 epochs and 46.6k, and 12.4k for BERT.
    """
    resnet, bert = ([Point(float(b), e) for b, e in reference_points(name)] for name in ("resnet-50", "bert-large-mlm"))
    assert len(resnet) == len(bert) == 6
    curve, epoch = fit(resnet, "t", "s"), 1_281_167
    assert curve.min_samples / epoch == pytest.approx(33.9, rel=0.02)
    assert curve.critical_batch == pytest.approx(45_000, rel=0.1)
    assert max(abs(p.samples - curve.samples(p.global_batch_size)) for p in resnet) < 3.1 * epoch
    assert curve.beyond_least(curve.critical_batch) == pytest.approx(0.5)
    curve = fit(bert, "t", "s")
    assert curve.critical_batch == pytest.approx(12_000, rel=0.15)
    assert curve.min_samples / curve.critical_batch == pytest.approx(190, rel=0.05)
    for name, own in (("resnet-50", resnet), ("bert-large", bert)):
        kept, found = convergence.mlperf(name), fit(own, "t", "s")
        assert kept.critical_batch == pytest.approx(found.critical_batch, rel=1e-3)
        assert kept.min_samples == pytest.approx(found.min_samples, rel=1e-3)


def test_one_run_and_its_noise_scale_stand_for_a_sweep() -> None:
    """Noise scale 400 in every epoch: Bcrit 400, known to a factor of two, and nothing beyond twice that."""
    plain = run("dense", 100, 5000)
    seen = replace(plain, curve=tuple({**entry, "noise_scale": 400.0} for entry in plain.curve))
    curve = convergence.from_run(seen, 0.5)
    assert curve.critical_batch == pytest.approx(400) and curve.min_samples == pytest.approx(4000)
    assert curve.samples(100) == pytest.approx(5000) and curve.interval(100) == pytest.approx((5000, 5000))
    low, high = curve.interval(800)
    assert low < curve.samples(800) / 1.3 and high > curve.samples(800) * 1.3
    for factor in (0.5, 2.0):  # what the ends of Bcrit's range say lies within
        exact = 5000 * (1 + 800 / (400 * factor)) / (1 + 100 / (400 * factor))
        assert low * 0.95 < exact < high * 1.05
    with pytest.raises(UserError, match="beyond what was seen"):
        curve.samples(900)
    assert "factor of 2" in curve.notes(400)[0]
    later = tuple({**entry, "noise_scale": 400.0 if n < 5 else 4e6} for n, entry in enumerate(plain.curve))
    assert convergence.from_run(replace(plain, curve=later), 0.5).critical_batch == pytest.approx(400)  # until the target
    for one, share, said in ((plain, 0.5, "without a noise scale"), (seen, 1.0, "give an accuracy that it reaches")):
        with pytest.raises(UserError, match=said):
            convergence.from_run(replace(one, curve=one.curve[:6]), share)


@pytest.mark.skipif(not MLPERF.exists(), reason="needs MLPerf's logs: PACELINE_SHARED names them")
def test_the_committed_constants_are_those_that_the_script_finds(tmp_path: Path) -> None:
    out = tmp_path / "c.toml"
    script = [sys.executable, str(ROOT / "benchmarks" / "convergence.py"), str(MLPERF), "--out", str(out)]
    subprocess.run(script, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, timeout=200)
    assert out.read_text() == (ROOT / "src/paceline/prediction/convergence.toml").read_text()
