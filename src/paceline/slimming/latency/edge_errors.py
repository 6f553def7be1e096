"""Errors of latencies predicted from published peaks, and the range of such a prediction for a processor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

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


def _quantile(ordered: list[EdgeError], weights: list[float], share: float) -> float:
    """Return the first ratio at which more than a share of the weight is passed."""
    passed, most = 0.0, share * sum(weights)
    for each, weight in zip(ordered, weights, strict=True):
        passed += weight
        if passed > most:
            return each.ratio
    return ordered[-1].ratio
