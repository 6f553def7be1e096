"""Errors of latencies predicted from published peaks, and the range of such a prediction for a processor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from statistics import median

from paceline.hardware.catalogue import load

WIDE = 0.05
"""Share of the errors below the range, and above it."""
ENOUGH = 3
"""Least number of other processors with rows of one core, or of several; with fewer, both kinds count."""


@dataclass(frozen=True, slots=True)
class EdgeError:
    """Published latency over the predicted one.

    Attributes:
        source: runtime that was timed, by its own project.
    """

    device: str
    threads: int
    network: str
    source: str
    ratio: float


@cache
def edge_errors() -> tuple[EdgeError, ...]:
    """Return all errors, in the order of the file."""
    return tuple(EdgeError(**row) for row in load("edge_errors.toml")["errors"])


def range_from(errors: Iterable[EdgeError], device: str, threads: int) -> tuple[float, float]:
    """Return the factors on a predicted latency between which 90 % of other processors' latencies lie.

    Rows of the processor itself are left out, so that the range says what to expect of a processor without a measurement. One
    core and several are apart. Each pair of processor and source has the same weight.

    Args:
        errors: with at least one other processor.
    """
    others = [each for each in errors if each.device != device]
    alike = [each for each in others if (each.threads > 1) == (threads > 1)]
    chosen = alike if len({each.device for each in alike}) >= ENOUGH else others
    counts: dict[tuple[str, str], int] = {}
    for each in chosen:
        counts[each.device, each.source] = counts.get((each.device, each.source), 0) + 1
    ordered = sorted(chosen, key=lambda each: each.ratio)
    weights = [1 / counts[each.device, each.source] for each in ordered]
    return _quantile(ordered, weights, WIDE), _quantile(ordered[::-1], weights[::-1], WIDE)


def errors_note(device: str, threads: int) -> str:
    """Return the errors of predictions, and of those for the processor itself if it has published latencies, as sentences."""
    every = edge_errors()
    own = [each for each in every if each.device == device and (each.threads > 1) == (threads > 1)]
    low, high = range_from(every, device, threads)
    devices = len({each.device for each in every})
    said = (
        f"Such predictions were {_off(every)} off {len(every)} published latencies of {devices} processors in the median. "
        f"The range, {low:.2g} to {high:.2g} times, holds nine in ten rows of the other processors"
    )
    if not own:
        return f"{said}; {device} has no published row."
    inside, cores = sum(low <= each.ratio <= high for each in own), "several cores" if threads > 1 else "one core"
    return f"{said}. {device} has {len(own)} rows on {cores}: {inside} are in the range."


def _off(errors: Iterable[EdgeError]) -> str:
    """Return the median error of predictions, relative to the published latency."""
    return f"{median(abs(1 / each.ratio - 1) for each in errors):.0%}".replace("%", " %")


def _quantile(ordered: list[EdgeError], weights: list[float], share: float) -> float:
    """Return the first ratio at which more than a share of the weight is passed."""
    passed, most = 0.0, share * sum(weights)
    for each, weight in zip(ordered, weights, strict=True):
        passed += weight
        if passed > most:
            return each.ratio
    return ordered[-1].ratio
