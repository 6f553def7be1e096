"""Where a plan's learning rates come from: a run of the user's, published rows of the network, or nowhere, which is said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from paceline.errors import UserError
from paceline.record import RunRecord
from paceline.strategy.recipe import Recipe, optimizers, published, reference_optimizer, scaled_recipe

TUNED = (
    "That a recipe is of LARS or LAMB does not say that they are needed: Nesterov SGD and Adam, tuned as well, reach the same "
    "(Nado et al. 2021)."
)


@dataclass(frozen=True)
class Recipes:
    """Learning rates of one network by batch.

    Attributes:
        target: ``mlperf`` where the rows must be those of MLPerf's target; else any rows of the network, its first table.
        own: a run of the user's, whose rates are scaled instead; ``own_batch``: its global batch.
    """

    network: str
    target: str = ""
    own: Recipe | None = None
    own_batch: int = 0

    def at(self, batch: int, samples: float, optimizer: str = "") -> Recipe | None:
        """The recipe of a run of ``samples``; None where no source has one, or none of ``optimizer`` (empty: its own)."""
        if self.own:
            return self._scaled(self.own, batch, samples) if optimizer in ("", self.own.optimizer) else None
        try:
            return published(self.network, batch, samples, optimizer=optimizer, target=self.target)
        except UserError:
            return None

    @property
    def of_curve(self) -> str:
        """The optimizer of the runs that say how many samples the target takes; empty where that is not known."""
        return reference_optimizer(self.network) if self.target == "mlperf" else ""

    def why_not(self, optimizer: str) -> str:
        """Why there is none, and what gives one."""
        if self.own:
            return f"your run was with {self.own.optimizer}; one with {optimizer} among --records gives rates to scale from"
        others = [name for name in optimizers(self.network, self.target) if name != optimizer]
        there = f"; published for this network: {', '.join(others)} (--optimizer)" if others else ""
        return (
            f"no source has a learning rate for {self.network} with {optimizer} at this batch in a run of this length{there}; "
            "--records of a run of your own gives one to scale from (linear for SGD and LARS, square root for Adam and LAMB)"
        )

    def _scaled(self, own: Recipe, batch: int, samples: float) -> Recipe:
        scaled = scaled_recipe(
            own.optimizer,
            own.lr,
            self.own_batch,
            batch,
            samples,
            base_warmup_samples=own.warmup_steps * self.own_batch,
            power=own.power,
        )
        return replace(scaled, options=own.options, source=f"{scaled.source}, your run")


def of_records(network: str, records: Iterable[RunRecord]) -> Recipes | None:
    """The recipe of the last run of ``network`` that has one; None where no run has."""
    for record in reversed(list(records)):
        if record.workload == network and record.recipe:
            return Recipes(network, own=Recipe.from_json(record.recipe), own_batch=int(record.strategy["global_batch_size"]))
    return None
