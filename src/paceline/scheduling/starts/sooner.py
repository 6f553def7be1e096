"""Changes of a waiting job with which it would start sooner, each forecast on the same futures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from paceline.hardware.catalogue import device, is_device
from paceline.scheduling.starts.forecast import Forecaster, StartForecast
from paceline.scheduling.starts.lengths import LengthDistribution
from paceline.scheduling.traces.record import LoggedJob
from paceline.units import format_seconds

GAIN, GAIN_S = 0.1, 60.0
"""Least share and least seconds of the median wait that a change must save."""
CERTAIN = 0.6
"""Least share of futures in which it starts no later."""
LIMIT_SHARE = 0.95
"""Probability that a job ends within a shorter limit."""
LIMIT_STEP_S = 900.0
"""Step of a proposed limit."""
Predict = Callable[[LoggedJob], LengthDistribution | None]
"""Length of a job from its command line; None if it cannot be told."""


@dataclass(frozen=True)
class Sooner:
    """Change with which a job starts sooner.

    Attributes:
        change: the change in words. ``remark``: what is assumed or risked.
    """

    change: str
    job: LoggedJob
    forecast: StartForecast
    remark: str = ""


def sooner(forecaster: Forecaster, forecast: StartForecast, predict: Predict | None = None) -> tuple[Sooner, ...]:
    """Return the changes that help, the earliest median start first.

    Fewer devices and other types count only if the job also ends no later.
    """
    found = []
    for change, job, length, remark, may_end_later in _changes(forecaster, forecast.job, predict):
        other = forecaster.variant(forecast.job, job, length)
        if _helps(forecast, other) and (may_end_later or other.end() <= forecast.end()):
            found.append(Sooner(change, job, other, remark))
    return tuple(sorted(found, key=lambda each: each.forecast.start()))


def _helps(forecast: StartForecast, other: StartForecast) -> bool:
    saved = forecast.start() - other.start()
    no_later = float(np.mean(other.start_s <= forecast.start_s))
    return saved >= max(GAIN * min(forecast.start(), 1e9), GAIN_S) and no_later >= CERTAIN


def _changes(
    forecaster: Forecaster, job: LoggedJob, predict: Predict | None
) -> Iterator[tuple[str, LoggedJob, LengthDistribution, str, bool]]:
    length = forecaster.distribution(job)
    yield from _limits(job, length)
    yield from _fewer(job, length, predict)
    yield from _types(forecaster, job, length, predict)


def _limits(job: LoggedJob, length: LengthDistribution) -> Iterator[tuple[str, LoggedJob, LengthDistribution, str, bool]]:
    if not job.limit_s:
        return
    wanted = float(length.quantile(LIMIT_SHARE))
    limit_s = math.ceil(wanted / LIMIT_STEP_S) * LIMIT_STEP_S
    if limit_s < 0.9 * job.limit_s:
        minutes = int(limit_s // 60)
        reached = float(length.weights[length.values > limit_s].sum())
        remark = (
            f"{reached:.0%} of such runs take longer and would be ended" if reached >= 0.005 else "no known run takes longer"
        )
        yield f"limit {minutes // 60}:{minutes % 60:02d}:00", replace(job, limit_s=limit_s), length, remark, True


def _fewer(
    job: LoggedJob, length: LengthDistribution, predict: Predict | None
) -> Iterator[tuple[str, LoggedJob, LengthDistribution, str, bool]]:
    for devices in (job.devices // 2, job.devices // 4):
        if devices < 1 or devices * max(job.devices // devices, 1) != job.devices:
            continue
        ratio = job.devices / devices
        nodes = max(1, round(job.nodes / ratio)) if job.nodes else 0
        changed = replace(job, devices=devices, nodes=nodes, limit_s=job.limit_s * ratio)
        predicted = predict(changed) if predict and job.command else None
        remark = "" if predicted else f"if it then runs {ratio:g} times as long"
        unit = "device" + "s" * (devices > 1)
        limit = f", limit {format_seconds(changed.limit_s)}" if job.limit_s else ""
        yield f"{devices} {unit}{limit}", changed, predicted or length.scaled(ratio), remark, False


def _types(
    forecaster: Forecaster, job: LoggedJob, length: LengthDistribution, predict: Predict | None
) -> Iterator[tuple[str, LoggedJob, LengthDistribution, str, bool]]:
    nodes = forecaster.queue.nodes
    now = {nodes.types[node] for node in nodes.pool(job)}
    if not job.device_types or len(now) != 1:
        return
    own = next(iter(now))
    for kind in dict.fromkeys(nodes.types):
        ratio = speed_ratio(kind, own)
        changed = replace(job, device_types=(kind,))
        pool = nodes.pool(changed)
        if kind in now or not kind or sum(int(nodes.devices[node]) for node in pool) < job.devices:
            continue
        predicted = predict(changed) if predict and job.command else None
        if predicted is None and ratio is None:
            continue
        scaled = replace(changed, limit_s=job.limit_s / ratio) if ratio and job.limit_s else changed
        remark = "" if predicted else f"with lengths by peak rates: {kind} has {ratio:.2g} times that of {own}"
        limit = f", limit {format_seconds(scaled.limit_s)}" if scaled.limit_s > job.limit_s else ""
        yield f"{job.devices} {kind}{limit}", scaled, predicted or length.scaled(1 / (ratio or 1.0)), remark, False


def speed_ratio(kind: str, other: str) -> float | None:
    """Return the peak rate of a device relative to another one; None if the catalogue lacks one of them."""
    if not is_device(kind) or not is_device(other):
        return None
    first, second = device(kind).peak_flops, device(other).peak_flops
    for precision in ("bf16", "fp16", "fp32"):
        if precision in first and precision in second:
            return float(first[precision].value / second[precision].value)
    return None
