"""Source of a plan's learning rates: a user's run or published runs of the network, else why there is none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from paceline.errors import UserError
from paceline.record import RunRecord
from paceline.strategy.recipe import Recipe, networks, optimizers, published, reference_optimizer, scaled_recipe

TUNED = (
    "A recipe with LARS or LAMB does not mean that they are needed. Nesterov SGD and Adam reach the same accuracy when tuned "
    "as carefully (Nado et al. 2021)."
)


@dataclass(frozen=True)
class Recipes:
    """Learning rates of one network by batch.

    Attributes:
        target: ``mlperf`` takes only runs of MLPerf's target; empty takes the network's first table.
        own: recipe of a run of the user's, scaled instead of published ones. ``own_batch``: its global batch.
    """

    network: str
    target: str = ""
    own: Recipe | None = None
    own_batch: int = 0

    def at(self, batch: int, samples: float, optimizer: str = "") -> Recipe | None:
        """Return the recipe for a run of ``samples``; None if no source has one for ``optimizer`` (empty: any)."""
        if self.own:
            return self._scaled(self.own, batch, samples) if optimizer in ("", self.own.optimizer) else None
        if self.network not in networks():
            return None
        try:
            return published(self.network, batch, samples, optimizer=optimizer, target=self.target)
        except UserError:
            return None

    @property
    def of_curve(self) -> str:
        """Return the optimizer of the runs behind the convergence curve; empty if unknown."""
        return reference_optimizer(self.network) if self.target == "mlperf" else ""

    def why_not(self, optimizer: str) -> str:
        """Return why there is no recipe, with advice."""
        if self.own:
            return f"your run used {self.own.optimizer}; add records of {optimizer} (--records), and its rates are scaled"
        others = [name for name in optimizers(self.network, self.target) if name != optimizer]
        others_text = f"; published for this network, with another optimizer: {', '.join(others)}" if others else ""
        return (
            f"no source has a learning rate for {self.network} with {optimizer} at this batch and run length{others_text}; "
            "give records of your own (--records): the rate is scaled (linear for SGD and LARS, square root for Adam and LAMB)"
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
    """Return recipes from the last run of ``network`` that has one; None without such a run."""
    for record in reversed(list(records)):
        if record.workload == network and record.recipe:
            return Recipes(network, own=Recipe.from_json(record.recipe), own_batch=int(record.strategy["global_batch_size"]))
    return None
