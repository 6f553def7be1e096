"""Further tokens that local steps need for the loss of an exchange in every step, by published scaling laws.

The laws of DiLoCo give the relative difference of the loss at N parameters and M workers. A law of loss by tokens turns it into
further tokens: the factor f for which ``(1 + difference) L(N, f D) = L(N, D)``. The fits of the two papers are the range.

The laws hold for DiLoCo: AdamW inside, dense pseudo-gradients, Nesterov momentum outside, tuned rates. For other methods the
number of further tokens is unknown, and a finding of their authors is repeated in words.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from paceline.strategy.optimizer import OPTIMIZERS, Optimizer, usual_optimizer
from paceline.strategy.strategy import Strategy
from paceline.workload.family import DECODER, family
from paceline.workload.table import Workload

NONE = 0.005
"""Factor on the tokens, less 1, below which a law has no further tokens: it would be shown as 0 %."""
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

    @property
    def none(self) -> bool:
        """True if both laws have no more loss than an exchange in every step, to half a percent of the tokens."""
        return self.high < 1 + NONE

    @property
    def words(self) -> str:
        """The range in a few words."""
        if self.none:
            return "none"
        most = "any" if math.isinf(self.high) else f"{self.high - 1:.0%}"
        return f"{self.low - 1:.0%} to {most}" if self.low >= 1 + NONE else f"at most {most}"

    def sentence(self) -> str:
        """Describe the difference and the range, and where the laws hold."""
        if self.none:
            taken = "no more loss for equal tokens than an exchange in every step: no further tokens"
        else:
            few = f"{self.low - 1:.0%} to " if self.low >= 1 + NONE else "at most "
            most = "no number of tokens" if math.isinf(self.high) else f"{self.high - 1:.0%}"
            losses = f"{self.loss_low:.1%} to {self.loss_high:.1%}"
            taken = f"{losses} more loss for equal tokens: an equal loss takes {few}{most} further tokens"
        return f"Published laws of DiLoCo have {taken}. They hold for {law_range()}, and are extrapolated beyond {_fitted()}."


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of a method's authors where no law holds.

    Attributes:
        brief: the finding in a few words.
        said: the finding as a sentence.
        source: paper and section.
    """

    brief: str
    said: str
    source: str


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


def further_of(workload: Workload, strategy: Strategy) -> FurtherTokens | None:
    """Return the further tokens of a strategy; None for other networks than decoders, and where no law was published."""
    if family(workload) != DECODER or method_of(workload, strategy) != "diloco":
        return None
    return further_tokens(workload.num_parameters, strategy.worker_count, strategy.sync_every)


_OTHERS: tuple[tuple[str, Callable[[Strategy, Optimizer], bool]], ...] = (
    ("decoupled", lambda s, _: s.local.round_deadline_s is not None),
    ("muloco", lambda _, inner: inner.orthogonal),
    ("sparseloco", lambda s, _: s.description.error_feedback and not s.local.outer_momentum),
    ("streaming", lambda s, _: s.local.fragments > 1 or s.local.sync_delay > 0),
    ("compressed", lambda s, _: s.gradient_exchange.compression.compresses),
    ("mean of weights", lambda s, _: not s.local.outer_momentum),
    ("other optimizer", lambda _, inner: not inner.is_adam),
)
"""Methods that are not DiLoCo, with the choices that tell them apart; the first that matches counts."""


def method_of(workload: Workload, strategy: Strategy) -> str:
    """Return the name of the published method that a strategy of local steps is, or comes from."""
    inner = OPTIMIZERS[strategy.optimizer or usual_optimizer(workload)]
    return next((name for name, is_it in _OTHERS if is_it(strategy, inner)), "diloco")


def finding_of(workload: Workload, strategy: Strategy) -> Finding | None:
    """Return what the authors of the strategy's method found on its loss; None where nothing was published."""
    return finding(method_of(workload, strategy))


def finding(name: str) -> Finding | None:
    """Return the finding of the authors of a method by its name; None where nothing was published."""
    found = _laws()["finding"].get(name)
    return None if found is None else Finding(**found)


def law_range() -> str:
    """Return the networks and the runs for which the laws of DiLoCo hold, in words."""
    law = _laws()["diloco"]
    workers = [fit["count"] for fit in law["workers"] if fit["count"] > 1]
    least, most = (_parameters(count) for count in law["parameters"])
    return f"{min(workers)} to {max(workers)} workers, {least} to {most} parameters, {law['steps']} local steps, tuned rates"


def _fitted() -> str:
    return _parameters(_laws()["diloco"]["fitted_to"])


def _parameters(count: float) -> str:
    return f"{count / 1e9:g}B" if count >= 1e9 else f"{count / 1e6:g}M"


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
