"""Further tokens that local steps need for the loss of an exchange in every step, by published scaling laws.

The laws of DiLoCo give the relative difference of the loss at N parameters and M workers. A law of loss by tokens turns it into
further tokens: the factor f for which ``(1 + difference) L(N, f D) = L(N, D)``. The fits of the two papers are the range.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from paceline.workload.family import DECODER, family
from paceline.workload.table import Workload

TOKENS = 20.0
"""Tokens for each parameter at which the laws of DiLoCo were measured."""


@dataclass(frozen=True, slots=True)
class FurtherTokens:
    """Factor on the tokens to an equal loss.

    Attributes:
        loss_low, loss_high: relative difference of the loss for equal tokens by the two fits; 0.01 is 1 % more. A smaller loss
            counts as 0.
        low, high: ends of the factor; inf: no number of tokens suffices by that law.
        workers: number of workers of the law.
        source: source of the difference.
    """

    loss_low: float
    loss_high: float
    low: float
    high: float
    workers: int
    source: str

    def sentence(self) -> str:
        """Describe the difference and the range in one sentence."""
        if self.high == 1:
            return "Published laws have no more loss for equal tokens: no further tokens."
        most = "no number of tokens" if math.isinf(self.high) else f"{self.high - 1:.0%}"
        return (
            f"Published laws have {self.loss_low:.1%} to {self.loss_high:.1%} more loss for equal tokens: an equal loss takes "
            f"{self.low - 1:.0%} to {most} further tokens."
        )


def further_tokens(parameters: float, workers: int, sync_every: int) -> FurtherTokens | None:
    """Return the further tokens of a language model with DiLoCo; None where no law was published.

    Args:
        parameters: of the network. The law holds from 35 million to 10 billion.
        workers: 2 to 8; numbers between those of the law take the next larger one.
        sync_every: steps between exchanges; the law has 30, and fewer lose less.
    """
    law = _laws()["diloco"]
    least, most = law["parameters"]
    counts = [fit["count"] for fit in law["workers"]]
    if not least <= parameters <= most or not 1 < workers <= max(counts) or sync_every > law["steps"]:
        return None
    fit, joint = next(fit for fit in law["workers"] if fit["count"] >= workers), law["joint"]
    plain = _power(law["data_parallel"], parameters)
    ratios = _power(fit, parameters) / plain, _power(joint, parameters) * workers ** joint["beta"] / plain
    less, more = sorted(max(0.0, ratio - 1) for ratio in ratios)
    low, high = ([token_factor(o, parameters, TOKENS * parameters, d) for o in _laws()["tokens"]] for d in (less, more))
    return FurtherTokens(less, more, min(low), max(high), fit["count"], law["source"])


def further_of(workload: Workload, workers: int, sync_every: int) -> FurtherTokens | None:
    """Return the further tokens of a transformer decoder; None for other networks, and where no law was published."""
    return further_tokens(workload.num_parameters, workers, sync_every) if family(workload) == DECODER else None


def token_factor(law: Mapping[str, float], parameters: float, tokens: float, difference: float) -> float:
    """Return the factor on ``tokens`` that makes up for a relative difference of the loss; 1 without one, inf if none does."""
    if difference <= 0:
        return 1.0
    floor = law["E"] + law["A"] / parameters ** law["alpha"]
    improvable = law["B"] / tokens ** law["beta"]
    left = (floor + improvable) / (1 + difference) - floor
    return float((improvable / left) ** (1 / law["beta"])) if left > 0 else math.inf


def _power(fit: Mapping[str, float], parameters: float) -> float:
    return float(fit["A"] * parameters ** fit["alpha"])


@cache
def _laws() -> Mapping[str, Any]:
    return tomllib.loads(files("paceline.prediction.learning").joinpath("local_loss.toml").read_text(encoding="utf-8"))


def sources() -> tuple[str, ...]:
    """Return the sources of the laws of loss by tokens."""
    return tuple(law["source"] for law in _laws()["tokens"])
