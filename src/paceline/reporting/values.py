"""Metrics as text: with units and ranges, and ``unknown`` for missing numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from paceline.record import Metrics, RunRecord
from paceline.units import digits3, format_bytes, format_memory, format_seconds, format_seconds_range

if TYPE_CHECKING:
    from paceline.strategy.choices.choice import StrategyChoice

UNKNOWN = "unknown"
TOLERANCE = 0.25
"""Largest relative error of a predicted step time that still counts as right."""


def clean(text: object, limit: int = 200) -> str:
    """Return one printable line of at most ``limit`` characters, because names come from users and files."""
    flat = " ".join(str(text).split())
    flat = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in flat)
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def number(value: float) -> str:
    """Format a number with three significant digits, with an exponent only if very large or very small."""
    if not math.isfinite(value):
        return UNKNOWN
    if abs(value) >= 1e15 or 0 < abs(value) < 1e-12:
        return f"{value:.2e}"
    return digits3(value)


def seconds(value: float) -> str:
    """Format a time: ``12.3 ms``."""
    if not math.isfinite(value):
        return UNKNOWN
    return f"{number(value)} s" if value == 0 or abs(value) >= 1e15 else format_seconds(value)


def time_range(low: float, high: float, like: float) -> str:
    """Format a range of seconds in the unit of ``like``: ``10.1-15.2 ms``."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return "range unknown"
    if not math.isfinite(like) or max(map(abs, (low, high, like))) >= 1e15:
        return f"{seconds(low)} to {seconds(high)}"
    return format_seconds_range(low, high, like)


def parts_text(run: Metrics) -> str:
    """Format the parts of a step, one after the other: ``reference 66.0 ms, train 269 ms``; empty for a step of one part."""
    parts: Mapping[str, float] = getattr(run, "parts", {})
    return ", ".join(f"{name} {seconds(own)}" for name, own in parts.items())


def step_range(run: Metrics) -> str:
    """Format the range of a step time: ``10.1-15.2 ms``."""
    return time_range(run.low_s, run.high_s, run.step_time_s)


def range_beside(run: Metrics) -> str:
    """Format the range of a step time without its unit, ``10.1-15.2``, for use after the time with its unit."""
    span = step_range(run)
    ends, _, unit = span.rpartition(" ")
    return ends if ends and seconds(run.step_time_s).partition(" ")[2] == unit else span


def count(number: int, noun: str, plural: str = "") -> str:
    """Format a count: ``1 worker``, ``2 workers``."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def rate_bounds(run: Metrics) -> tuple[float, float]:
    """Return samples/s at the slow and at the fast end of the step time's range; NaN if an end is zero."""
    batch = run.samples_per_s * run.step_time_s
    return tuple(batch / t if t > 0 else math.nan for t in (run.high_s, run.low_s))  # type: ignore[return-value]


def rate_range(run: Metrics) -> str:
    """Format samples/s over the step time's range: ``4300-6300``."""
    slow, fast = rate_bounds(run)
    return f"{number(slow)}-{number(fast)}" if math.isfinite(slow) and math.isfinite(fast) else "range unknown"


def percent(share: float, signed: bool = False) -> str:
    """Format a share as ``96.7 %``, or with ``signed`` a difference as ``+4.2 %``. One decimal, as accuracies are quoted."""
    if not math.isfinite(share):
        return UNKNOWN
    if abs(share) >= 1e4:
        return f"{'+' if signed and share > 0 else ''}{number(share * 100)} %"
    return f"{share * 100:{'+' if signed else ''}.1f} %"


def size(value: float) -> str:
    """Format decimal bytes: ``1.72 MB``."""
    if not math.isfinite(value):
        return UNKNOWN
    return f"{number(value)} B" if value >= 1e21 else format_bytes(value)


def memory(value: float) -> str:
    """Format binary bytes: ``1.72 GiB``."""
    if not math.isfinite(value):
        return UNKNOWN
    return f"{number(value)} B" if value >= 1e18 else format_memory(value)


def ratio(value: float) -> str:
    """Format a ratio: ``15.8x``."""
    return f"{number(value)}x" if math.isfinite(value) else UNKNOWN


def rate(value: float) -> str:
    """Format a throughput in samples/s, without the unit."""
    return number(value)


def relative_error(predicted: float, measured: float) -> float:
    """Return (predicted - measured) / measured; NaN if measured is 0 or unknown."""
    if not (math.isfinite(predicted) and math.isfinite(measured)) or measured == 0:
        return math.nan
    return (predicted - measured) / measured


def accuracy_of(run: Metrics) -> float:
    """Return the final accuracy, 0 to 1; NaN for a prediction, which has none."""
    return run.accuracy if isinstance(run, RunRecord) else math.nan


def _declared() -> Mapping[str, StrategyChoice]:
    from paceline.strategy.strategy import CHOICES  # loads NumPy, which most reports need not

    return CHOICES


@cache
def _usual() -> Mapping[str, object]:
    """Return the values at which choices of a strategy are not shown."""
    from paceline.strategy.choices.values import plain

    return {item.name: plain(item.default) for item in _declared().values() if item.has_default and not item.said}


@cache
def _in_title() -> frozenset[str]:
    """Return the choices that a title states apart or leaves out: sizes, precision and optimizer."""
    return frozenset(item.name for item in _declared().values() if not item.part or item.name == "world_size")


@cache
def _usual_exchange() -> Mapping[str, object]:
    """Return the compression and the exchange of a strategy that names none."""
    from paceline.strategy.choices.choice import declared
    from paceline.strategy.choices.values import plain
    from paceline.strategy.gradient_exchange import GradientExchange

    items = (item for item in declared(GradientExchange) if item.said and item.values.objects)
    return {item.name: plain(getattr(GradientExchange(), item.field)) for item in items}


def strategy_text(strategy: Mapping[str, object]) -> str:
    """Describe every choice of a strategy: ``compression terngrad, exchange allreduce, workers 4, bucket 26.2 MB``."""
    return ", ".join(_choices(strategy))


def unusual_choices(strategy: Mapping[str, object]) -> list[str]:
    """Return choices other than the default, sizes, precision and optimizer: ``["sharding zero3", "compression terngrad"]``."""
    kept = {name: value for name, value in strategy.items() if name not in _in_title() and _usual_exchange().get(name) != value}
    return _choices(kept)


def _choices(strategy: Mapping[str, object]) -> list[str]:
    def choice(name: str, value: object) -> str:
        if name.endswith("_bytes") and isinstance(value, int | float):
            return f"{clean(name.removesuffix('_bytes')).replace('_', ' ')} {size(value)}"
        if isinstance(value, Mapping):
            value = {k: ", ".join(map(str, v)) if isinstance(v, list) else v for k, v in value.items() if v != []}
            return ", ".join(choice(str(k), f"{v:g}" if isinstance(v, float) else v) for k, v in value.items())
        title = declared[name].listed(value) if name in declared else ""
        return clean(title) if title else f"{clean(name).replace('_', ' ')} {clean(value)}"

    declared, usual = _declared(), _usual()
    shown = {
        k: v
        for k, v in strategy.items()
        if v not in (None, "", {}) and not (k in usual and v == usual[k]) and (k, v) != ("recompute", False)  # of old runs
    }
    return [choice(k, v) for k, v in shown.items()]


@dataclass(frozen=True)
class MetricRow:
    """Row of a metric: its name, its location, and its format (value, then range or an empty text)."""

    name: str
    get: Callable[[Metrics], float]
    show: Callable[[float], str]
    spread: Callable[[Metrics], str] = lambda run: ""

    def text(self, run: Metrics) -> tuple[str, str]:
        """Format the value and its range; an unknown value has none."""
        value = self.show(self.get(run))
        return (value, "") if value == UNKNOWN else (value, self.spread(run))


HEADLINE = (
    MetricRow("step time", lambda r: r.step_time_s, seconds, range_beside),
    MetricRow("samples/s", lambda r: r.samples_per_s, rate, rate_range),
    MetricRow("wire bytes per step per worker", lambda r: float(r.wire_bytes_per_device), size),
    MetricRow("compression ratio", lambda r: r.compression_ratio, ratio),
    MetricRow("final accuracy", accuracy_of, percent),
)
"""The five metrics of the comparison table, in its order."""

DETAIL = (
    HEADLINE[0],
    MetricRow("compute (forward, backward, optimizer)", lambda r: r.compute_s, seconds),
    MetricRow("exposed communication", lambda r: r.exposed_comm_s, seconds),
    MetricRow("network, busy", lambda r: r.comm_s, seconds),
    MetricRow("codec, busy", lambda r: r.codec_s, seconds),
    *HEADLINE[1:4],
    MetricRow("memory per device", lambda r: r.memory_bytes, memory),
    HEADLINE[4],
)
"""Every number of a run, for the report."""
