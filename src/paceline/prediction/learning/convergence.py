"""Samples to a target at a global batch, and the effect of a compression on them.

``E(B) = Emin (1 + B / Bcrit)`` samples for a batch of B. Below the critical batch a larger one costs no more samples. Above it
each doubling of the batch doubles them (McCandlish et al. 2018, An Empirical Model of Large-Batch Training, section 2.3,
equation 2.11). Shallue et al. 2019, Measuring the Effects of Data Parallelism, JMLR 20(112), section 4.1, find the same form if
the learning rate is tuned at each batch. Constants of MLPerf's benchmarks are in ``convergence.toml``, which
``benchmarks/convergence.py`` writes. A user's curve is fitted from points or from run records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from paceline.calibration.constants import assumed
from paceline.calibration.uncertainty import Z80
from paceline.csv_rows import Row, read
from paceline.errors import UserError, unknown
from paceline.prediction.learning.noise_scale import LEAST_STEPS, BatchEfficiency, critical_batch
from paceline.record import RunRecord
from paceline.strategy.compression.compression_options import Given
from paceline.strategy.compression.compressions import DENSE

COLUMNS = ("global_batch", "samples_to_target")
NOISE_FACTOR: float = assumed("noise_scale_factor")
"""Factor around the critical batch of a sweep that contains the gradient noise scale with 80 % probability."""


@dataclass(frozen=True, slots=True)
class Point:
    """A run that reached the target: its global batch, and its samples until then."""

    global_batch_size: float
    samples: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """Samples to a target as a function of the global batch.

    Attributes:
        target: description of the target. ``source``: origin of the points.
        min_samples, critical_batch: Emin and Bcrit, in samples; Bcrit is inf if the points show no growth.
        low_batch, high_batch: the smallest and the largest batch of the points. The curve ends at ``high_batch``.
        spread: standard deviation of log(points / curve).
        epoch_samples: samples of one pass over the data; 0 if unknown.
        start: starting point of the runs in words, such as "from random weights"; empty if unknown.
        tokens: length of a sequence, with its padding, if samples are sequences; else 0.
        padding: share of the tokens that is padding and is not computed.
        critical_spread: standard deviation of log(Bcrit) if Bcrit is an estimate and one run at ``low_batch`` gives the curve;
            0 if the points give both.
    """

    target: str
    min_samples: float
    critical_batch: float
    num_points: int
    low_batch: float
    high_batch: float
    spread: float
    source: str
    epoch_samples: int = 0
    start: str = ""
    tokens: int = 0
    padding: float = 0.0
    critical_spread: float = 0.0

    def computed_tokens(self, tokens: int | None = None) -> int:
        """Return the tokens of a sequence that are computed, without padding; ``tokens`` None means the target's sequences."""
        return round((self.tokens if tokens is None else tokens) * (1 - self.padding))

    def samples(self, global_batch_size: float, beyond: bool = False) -> float:
        """Return the samples to the target.

        Args:
            beyond: whether to exceed the largest batch of the points. The form is often too low there: past some batch no
                learning rate still trains (Shallue et al. 2019, section 4.7).

        Raises:
                UserError: a larger batch than that of any point, unless ``beyond``.
        """
        if global_batch_size > self.high_batch * 1.001 and not beyond:
            raise UserError(
                f"global batch {global_batch_size:g} is beyond what was seen to reach {self.target}: "
                f"{self.low_batch:g} to {self.high_batch:g}",
                f"give a batch up to {self.high_batch:g}, or your own runs",
            )
        return self.min_samples * (1 + global_batch_size / self.critical_batch)

    def interval(self, global_batch_size: float, beyond: bool = False) -> tuple[float, float]:
        """Return the 80 % interval of the samples that runs of the same kind need."""
        middle, factor = self.samples(global_batch_size, beyond), math.exp(Z80 * self.spread_at(global_batch_size))
        return middle / factor, middle * factor

    def spread_at(self, global_batch_size: float) -> float:
        """Return the standard deviation of log(samples): of the runs, and of an uncertain Bcrit away from ``low_batch``."""
        shares = [self.beyond_least(batch) for batch in (global_batch_size, self.low_batch)]
        return math.hypot(self.spread, self.critical_spread * (shares[0] - shares[1]))

    def beyond_least(self, global_batch_size: float) -> float:
        """Return the share of samples that a small batch would not need, 0 to 1: ``B / (B + Bcrit)``, a half at Bcrit."""
        return BatchEfficiency(global_batch_size, self.critical_batch).wasted_share

    def steps(self, global_batch_size: int) -> int:
        """Return the optimizer steps to the target. Raises UserError as ``samples``."""
        return math.ceil(self.samples(global_batch_size) / global_batch_size)

    def notes(self, global_batch_size: float) -> tuple[str, ...]:
        """Return the assumptions of the curve, in sentences; one more if the batch is smaller than that of any point."""
        finite = math.isfinite(self.critical_batch)
        critical = f"a critical batch of {self.critical_batch:.3g}" if finite else "no critical batch"
        text = f"Samples to {self.target}: {self.min_samples:.3g} and {critical}, from "
        if self.critical_spread:
            share = math.exp(Z80 * self.spread_at(global_batch_size)) - 1
            return (f"{text}{self.source}. At batch {global_batch_size:g} its error is {share:.0%} of the samples.",)
        text += (
            f"{self.num_points} points at batches of {self.low_batch:g} to {self.high_batch:g} ({self.source}). "
            f"Runs lie {self.spread:.0%} off the curve."
        )
        if global_batch_size >= self.low_batch:
            return (text,)
        return text, f"Batch {global_batch_size:g} is smaller than any of these: the curve is assumed flat there."


def fit(points: Iterable[Point], target: str, source: str, epoch_samples: int = 0) -> Convergence:
    """Fit a curve to ``points`` by least squares of the relative errors; each batch counts once, by its median point.

    Raises:
        UserError: fewer than three points, or all at one batch, which do not determine two constants and their spread.
    """
    kept = [p for p in points if p.global_batch_size > 0 and 0 < p.samples < math.inf]
    batches = sorted({p.global_batch_size for p in kept})
    if len(kept) < 3 or len(batches) < 2:
        raise UserError(
            f"{len(kept)} points at {len(batches)} batches do not say how samples grow with the batch",
            "give at least three, at two batches or more",
        )
    middles = [median(p.samples for p in kept if p.global_batch_size == b) for b in batches]
    b, e = np.array(batches), np.array(middles)
    design = np.stack([1 / e, b / e], axis=1)
    constant, slope = (float(x) for x in np.linalg.lstsq(design, np.ones(len(e)), rcond=None)[0])
    if slope <= 0:  # more samples at smaller batches is noise, since the form cannot fall
        constant, slope = float((1 / e).sum() / (1 / e**2).sum()), 0.0
    elif constant <= 0:  # past the critical batch everywhere, so it has only an upper bound
        slope = float((b / e).sum() / ((b / e) ** 2).sum())
        constant = slope * batches[0]
    off = [math.log(p.samples / (constant + slope * p.global_batch_size)) for p in kept]
    return Convergence(
        target=target,
        min_samples=constant,
        critical_batch=constant / slope if slope else math.inf,
        num_points=len(kept),
        low_batch=batches[0],
        high_batch=batches[-1],
        spread=math.sqrt(sum(x * x for x in off) / max(1, len(off) - 2)),
        source=source,
        epoch_samples=epoch_samples,
    )


def reached(record: RunRecord, accuracy: float) -> Point | None:
    """Return the point at which a run first reached ``accuracy`` (0 to 1), linear between epochs; None if it never did."""
    if record.stages:  # of several batches
        return None
    samples = float(record.strategy["global_batch_size"]) * record.steps / max(1, record.epochs)  # of one epoch
    before = (0.0, 0.0)
    for entry in record.curve:
        now = (float(entry["epoch"]), float(entry["accuracy"]))
        if now[1] >= accuracy:
            share = (accuracy - before[1]) / (now[1] - before[1]) if before[0] and now[1] > before[1] else 1.0
            return Point(float(record.strategy["global_batch_size"]), samples * (before[0] + share * (now[0] - before[0])))
        before = now
    return None


def uncompressed(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return the runs without compression."""
    return [record for record in records if record.strategy.get("compression") == DENSE.name]


def from_records(records: Sequence[RunRecord], accuracy: float) -> Convergence:
    """Fit the curve of uncompressed runs. Raises UserError if too few reach ``accuracy``, or their networks differ."""
    if len({record.workload for record in records}) > 1:
        raise UserError("the records are of several networks", "give the runs of one")
    dense = uncompressed(records)
    points = [point for point in (reached(record, accuracy) for record in dense) if point]
    source = f"{len(points)} of {len(dense)} runs without compression reach it"
    return fit(points, f"{accuracy:.1%} accuracy", source)


def from_run(record: RunRecord, accuracy: float) -> Convergence:
    """Fit the curve of one run instead of a sweep: its samples at its own batch, and the noise scale for Bcrit.

    ``Emin = E(B) / (1 + B / Bcrit)``, Bcrit from the noise scale of the epochs until ``accuracy`` was reached (McCandlish et
    al. 2018, section 2.3). Bcrit is known to ``NOISE_FACTOR`` with 80 %, so the curve ends at that many times Bcrit.

    Raises:
        UserError: the run never reaches ``accuracy`` (0 to 1), or has no noise scale.
    """
    point = reached(record, accuracy)
    if point is None:
        best = max((float(entry["accuracy"]) for entry in record.curve), default=0.0)
        raise UserError(f"the run reaches {best:.1%}, not {accuracy:.1%}", "give an accuracy that it reaches")
    batch = point.global_batch_size
    until = math.ceil(point.samples * record.epochs / (batch * record.steps) - 1e-9)
    scales = [entry.get("noise_scale") for entry in record.curve if entry["epoch"] <= until]
    critical = critical_batch((scale for scale in scales if scale), batch)
    if critical is None:
        raise UserError(
            f"one run at batch {batch:g} without a noise scale does not say how samples grow with the batch",
            f"train on two workers or more for {LEAST_STEPS} steps, which measures it, or give three runs at two batches",
        )
    return Convergence(
        target=f"{accuracy:.1%} accuracy",
        min_samples=point.samples / (1 + batch / critical),
        critical_batch=critical,
        num_points=1,
        low_batch=batch,
        high_batch=max(batch, NOISE_FACTOR * critical),
        spread=0.0,
        source=f"one run, whose gradient noise scale gives the critical batch to a factor of {NOISE_FACTOR:g}",
        critical_spread=math.log(NOISE_FACTOR) / Z80,
    )


def measured_penalty(records: Sequence[RunRecord], accuracy: float, compression: str, curve: Convergence) -> float | None:
    """Return the samples of runs with ``compression`` over those of ``curve`` at their batch, the median; None without runs.

    The result is inf if most of them never reached ``accuracy``.
    """
    factors = []
    for record in (r for r in records if r.strategy.get("compression") == compression):
        point = reached(record, accuracy)
        factors.append(point.samples / curve.samples(point.global_batch_size, beyond=True) if point else math.inf)
    return median(factors) if factors else None


def read_points(path: str | Path, target: str = "the target") -> Convergence:
    """Fit the curve to a CSV file with the columns ``global_batch`` and ``samples_to_target``.

    Raises:
        UserError: no such file, a missing column, text instead of a number (with its line), too few points.
    """
    points = [Point(*(_number(row, name) for name in COLUMNS)) for row in read(path, COLUMNS)]
    return fit(points, target, str(path))


def _number(row: Row, column: str) -> float:
    value = row.positive(column)
    if value is None:
        raise row.wrong(column, "a number above 0")
    return value


def mlperf(workload: str) -> Convergence:
    """Return the curve of the MLPerf benchmark of ``workload``. Raises UserError with the networks that have one."""
    for entry in _data()["curve"]:
        if workload in entry["workloads"]:
            return Convergence(**{k: v for k, v in entry.items() if k not in ("benchmark", "workloads")})
    raise unknown("MLPerf convergence curve", workload, networks(), "give a CSV file of your own runs instead")


def epoch_samples(workload: str) -> int:
    """Return the samples of one pass over MLPerf's data for ``workload``; 0 if unknown."""
    return next((int(e.get("epoch_samples", 0)) for e in _data()["curve"] if workload in e["workloads"]), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Effect of a compression on the accuracy of one network in equal epochs.

    Attributes:
        points: accuracy minus that of dense runs, the mean over ``seeds``, in percentage points. ``error``: its standard error.
    """

    points: float
    error: float
    seeds: int
    network: str
    data: str
    workers: int


def accuracies(compression: str) -> tuple[Accuracy, ...]:
    """Return measured accuracies of a compression with its default options; empty without a measurement."""
    seen = [e for e in _data()["accuracy"] if e["compression"] == compression]
    return tuple(Accuracy(**{k: v for k, v in e.items() if k != "compression"}) for e in seen)


def accuracy_notes(compression: str, options: Given = ()) -> tuple[str, ...]:
    """Describe the measured effect of a compression on accuracy, or that it is unknown. ``options``: non-default ones."""
    if compression == DENSE.name:
        return ()
    measured = [
        f"{a.points:+.2f} points (standard error {a.error:.2f}, {a.seeds} seeds) on {a.network}, {a.data}, {a.workers} workers"
        for a in accuracies(compression)
    ]
    if not measured:
        return (f"The effect of {compression} on accuracy is unknown, not zero: it was not measured here.",)
    given = ", ".join(f"{k}={v:g}" for k, v in dict(options).items() if k != "ratio")  # only the prediction has a ratio
    return (
        f"Accuracy of {compression} against dense in equal epochs: {'; '.join(measured)}. Its effect on the "
        f"steps to a target is unknown, and so is that on another network{f' or with {given}' if given else ''}.",
    )


def networks() -> list[str]:
    """Return the networks with an MLPerf curve."""
    return [name for entry in _data()["curve"] for name in entry["workloads"]]


@cache
def _data() -> Mapping[str, Any]:
    import tomllib
    from importlib.resources import files

    return tomllib.loads(files("paceline.prediction").joinpath("convergence.toml").read_text(encoding="utf-8"))
