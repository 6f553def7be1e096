"""The assumptions of local steps, in plain sentences."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.prediction.answer.result import Assumption
from paceline.strategy.strategy import Strategy

DILOCO = "Douillard et al. 2023, DiLoCo, arXiv:2311.08105, abstract"


def local_assumptions(strategy: Strategy) -> Iterator[Assumption]:
    """What a prediction of local steps rests on."""
    local = strategy.local
    yield Assumption(
        "exchange",
        f"Local steps: {local.title}. Seconds and bytes of a step are the mean over {local.sync_every} steps. Averages "
        "of BatchNorm's statistics are not counted.",
        "Douillard et al. 2023, arXiv:2311.08105; Douillard et al. 2025, arXiv:2501.18512",
    )


def local_overlap(strategy: Strategy, overlap: bool) -> Assumption:
    """When the exchange runs."""
    delay = strategy.local.sync_delay
    if not delay:
        return Assumption("overlap", "The exchange begins behind the last local step, and the next one waits for it.")
    if not overlap:
        return Assumption("overlap", "Nothing hides the exchange: the same cores do both.")
    return Assumption("overlap", f"The exchange of a fragment runs beside {delay} steps; the next one waits for what is left.")


def local_accuracy(strategy: Strategy) -> Iterator[Assumption]:
    """What is known of the samples that local steps need."""
    x, local = strategy.gradient_exchange, strategy.local
    yield Assumption(
        "accuracy",
        f"How many more samples a target takes with {local.sync_every} local steps is unknown, not zero. Published: 8 workers "
        "with AdamW inside and Nesterov momentum outside train language models on C4 as well as with an exchange in each step, "
        "with 500 times fewer bytes. Other networks, more workers and other rates were not measured here.",
        DILOCO,
    )
    if x.compression != "dense":
        yield Assumption("accuracy", f"The effect of {x.compression} on pseudo-gradients is unknown, not zero.")
