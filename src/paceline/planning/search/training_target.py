"""Amount of training: a number of samples, or a target that needs more samples with a larger batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.errors import UserError
from paceline.planning.failures.failures import USUAL, Failures
from paceline.planning.search.learning_rates import TUNED, Recipes
from paceline.prediction.learning.convergence import Convergence
from paceline.prediction.learning.published_batches import PublishedBatch
from paceline.strategy.compression.compression import Compression
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.recipe import Recipe
from paceline.strategy.strategy import Strategy

MILLION = 1_000_000
MATRICES = (
    "Muon keeps its efficiency at larger batches than AdamW (Essential AI 2025, arXiv:2505.02222, up to 4 billion parameters). "
    "Its critical batch is not known for this network; that of the curve is cautious."
)
"""Note on the critical batch of an optimizer of matrices."""


@dataclass(frozen=True, kw_only=True)
class TrainingTarget:
    """Samples to train.

    Attributes:
        title: description, such as "1,000,000 samples".
        total: number of samples, for any batch; ignored if there is a ``curve``.
        curve: samples to a target by batch.
        penalties: measured factor on the samples to a target, by compression; without an entry the factor is unknown.
        epoch_samples: samples of one epoch; 0 if unknown.
        recipes: learning rates by batch; None if not requested.
        failures: rate of failures, checkpoints and restarts; by default published rates on many devices.
        published: largest published batch, a bound if there is no curve and the user names no batch; None: no bound.
    """

    title: str = "1,000,000 samples"
    total: float = MILLION
    curve: Convergence | None = None
    penalties: Mapping[str, float] = field(default_factory=dict)
    epoch_samples: int = 0
    recipes: Recipes | None = None
    published: PublishedBatch | None = None
    failures: Failures = USUAL

    @classmethod
    def reaching(cls, curve: Convergence, sample: str = "", seq_len: int | None = None) -> TrainingTarget:
        """Return the target of the quality of ``curve``, with its starting point and its samples in the title.

        Args:
            sample: description of a sample if the curve has none: ``image 3x224x224``.
            seq_len: tokens of a sequence that the user states instead of the curve's own.
        """
        if curve.tokens:
            padding = curve.tokens - curve.computed_tokens()
            sample = f"sequence of {curve.tokens} tokens" + (
                f", {padding} of them padding that is not computed" if padding else ""
            )
            if seq_len is not None:
                sample += f"; --seq-len {seq_len} computes {seq_len} of each"
        title = f"to {curve.target}" + (f", {curve.start}" if curve.start else "")
        title += f"; a sample is one {sample}" if sample else ""
        return cls(title=title, curve=curve, epoch_samples=curve.epoch_samples)

    @property
    def computed_tokens(self) -> int | None:
        """Tokens of a sequence without its padding; None if unknown."""
        return self.curve.computed_tokens() if self.curve and self.curve.tokens else None

    @property
    def tokens(self) -> int | None:
        """Tokens of a sequence with its padding; None if unknown."""
        return (self.curve and self.curve.tokens) or None

    def known(self, compression: Compression) -> bool:
        """Return whether the number of samples with this compression is known. Without a curve it always is."""
        return self.curve is None or not compression.compresses or compression.name in self.penalties

    def samples(self, strategy: Strategy) -> float:
        """Return the samples that ``strategy`` needs. An unknown penalty (``known``) counts as 1.

        Raises:
            UserError: a batch beyond the largest that has reached the target.
        """
        if self.curve is None:
            return self.total
        return self.curve.samples(strategy.global_batch_size) * self.penalties.get(
            strategy.gradient_exchange.compression.name, 1.0
        )

    @property
    def largest_batch(self) -> float:
        """Largest batch for which the curve is known; without a curve the largest published one, or inf."""
        if self.curve is None:
            return self.published.samples if self.published else math.inf
        return self.curve.high_batch * 1.001

    def spread(self, batch: int) -> float:
        """Standard deviation of log(samples) at a global batch."""
        return self.curve.spread_at(batch) if self.curve else 0.0

    def beyond_least(self, batch: int) -> float | None:
        """Share of the samples that a small batch would not need; None without a curve."""
        return self.curve.beyond_least(batch) if self.curve else None

    def optimizer(self, batches: Sequence[int]) -> str:
        """Return the optimizer of the learning rates for these batches, or of the user's own run; empty without a source.

        Without batches, the curve's lowest batch counts.
        """
        if self.recipes and self.recipes.own:
            return self.recipes.own.optimizer
        tried = batches or ([int(self.curve.low_batch)] if self.curve else [])
        totals = [self.curve.samples(batch, beyond=True) if self.curve else self.total for batch in tried]
        recipes = [self.recipes.at(batch, total) for batch, total in zip(tried, totals, strict=True)] if self.recipes else []
        return next((recipe.optimizer for recipe in recipes if recipe), "")

    def recipe(self, strategy: Strategy) -> Recipe | None:
        """Return learning rates of ``strategy``; None if no source has them."""
        if self.recipes is None:
            return None
        return self.recipes.at(strategy.global_batch_size, self.samples(strategy), strategy.optimizer)

    def notes(self, strategy: Strategy) -> tuple[str, ...]:
        """Return the assumptions about the samples, as sentences."""
        notes = self.curve.notes(strategy.global_batch_size) if self.curve else ()
        if self.published:
            notes = (*notes, f"The largest batch that was published for such a network: {self.published}.")
        if (recipe := self.recipe(strategy)) and OPTIMIZERS[recipe.optimizer].layerwise:
            notes = (*notes, TUNED)
        if self.recipes and (seen := self.recipes.of_curve) not in ("", strategy.optimizer):
            notes = (
                *notes,
                f"Samples and critical batch come from runs with {seen}; with {strategy.optimizer} they may differ.",
            )
        if self.curve and strategy.optimizer and OPTIMIZERS[strategy.optimizer].orthogonal:
            notes = (*notes, MATRICES)
        compression = strategy.gradient_exchange.compression
        if compression.name in self.penalties and self.curve:
            given = self.penalties[compression.name]
            return (
                *notes,
                f"{compression} needs {given:g} times as many samples: the user gave this factor.",
            )
        if self.curve is None and compression.compresses:
            return (*notes, "The time is for equal samples, not for equal accuracy.")
        return notes


def parse_penalties(texts: list[str]) -> dict[str, float]:
    """Parse factors on the samples to a target, such as ``["terngrad=1.05"]``. Raises UserError for other texts."""
    from paceline.errors import unknown
    from paceline.strategy import COMPRESSIONS

    penalties = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in COMPRESSIONS:
            raise unknown("compression", name, COMPRESSIONS)
        try:
            factor = float(value)
        except ValueError:
            factor = math.nan
        if not 0 < factor < math.inf:
            raise UserError(f"penalty {text!r} is not a factor on the samples", "write it as terngrad=1.05")
        penalties[name] = factor
    return penalties
