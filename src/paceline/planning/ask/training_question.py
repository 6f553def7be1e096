"""The network, target and prices that every plan of one ``ask`` shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.prices import Price
from paceline.planning.ask.rentals import Rental
from paceline.planning.search.choice import Plan
from paceline.planning.search.goal import Goal
from paceline.planning.search.layouts import Progress, silent
from paceline.planning.search.plan import plan
from paceline.planning.search.space import MODEL_AXES, PLAIN_GRADIENTS, Space
from paceline.planning.search.training_target import TrainingTarget
from paceline.prediction import StepPredictor
from paceline.strategy import BUCKET_BYTES
from paceline.strategy.pass_order import ONE_FORWARD_ONE_BACKWARD
from paceline.strategy.recompute import FULL_RECOMPUTE, NO_RECOMPUTE
from paceline.strategy.sharding import TORCH_SHARDINGS, ZERO1
from paceline.workload.table import Workload

FASTEST = Goal("fastest")
PLAIN: Mapping[str, Any] = {
    **PLAIN_GRADIENTS,
    "shardings": TORCH_SHARDINGS,
    "buckets": (BUCKET_BYTES,),
    **dict.fromkeys(MODEL_AXES, (1,)),
}
"""Choices that run in plain PyTorch: DDP and FSDP. ``plan`` also tries divided networks and compression."""
DIVIDED: Mapping[str, Any] = {
    "compressions": PLAIN_GRADIENTS["compressions"],
    "virtual_stages": (1,),
    "schedules": (ONE_FORWARD_ONE_BACKWARD.name,),
    "node_groups": False,
}
"""Choices to try if nothing plain fits. The aim is any layout that fits; ``plan`` finds the fastest."""

FEW: Mapping[str, Any] = {"tensors": (2, 4, 8), "contexts": (1,), "pipelines": (1, 2, 4, 8, 16), "offloads": False}
"""Subset of the layouts that most large networks are trained with."""
QUICK: Mapping[str, Any] = {**FEW, "shardings": (ZERO1.name,), "recomputes": (NO_RECOMPUTE.name, FULL_RECOMPUTE.name)}
"""Subset that is searched in a fraction of a second."""
ALL: Mapping[str, Any] = {}
"""All layouts, also with optimizer state in host memory."""


@dataclass(frozen=True)
class TrainingQuestion:
    """The network, target and prices of one question. ``choices`` are those of all its plans, by name."""

    workload: Workload
    target: TrainingTarget
    prices: Mapping[str, float | Price] | None
    predictor: StepPredictor
    choices: Mapping[str, Any] = field(default_factory=dict)

    def rented(self, rentals: Sequence[Rental]) -> TrainingQuestion:
        """Return the question at the prices of rentals, one per device."""
        listings = {rental.cluster.device.name: rental.listing for rental in rentals}
        return replace(self, prices={**listings, **self.own_prices})

    @property
    def own_prices(self) -> dict[str, float | Price]:
        """Prices in dollars that the user gave, without listings."""
        return {name: price for name, price in (self.prices or {}).items() if not isinstance(price, Price)}

    def may_hold(self, cluster: Cluster) -> bool:
        """Return whether the devices together can hold the least possible state.

        Trained weights and gradients take two bytes each, frozen weights half a byte.
        """
        least = 4 * self.workload.num_parameters + self.workload.frozen / 2
        return cluster.world_size * cluster.device.memory.value >= least

    def plan(self, space: Space, goal: Goal = FASTEST, progress: Progress = silent) -> Plan | None:
        """Return the plan; None if nothing is legal, fits or meets the goal."""
        if self.choices:
            space = replace(space, others={**space.others, **{name: (value,) for name, value in self.choices.items()}})
        try:
            return plan(
                self.workload,
                space,
                goal,
                self.target,
                prices=self.prices,
                predictor=self.predictor,
                progress=progress,
                offers=False,
            )
        except UserError:
            return None

    def plain(self, clusters: Sequence[Cluster], goal: Goal = FASTEST) -> Plan | None:
        """Return the best of DDP and FSDP."""
        return self.plan(Space(clusters=tuple(clusters), **PLAIN), goal)

    def divided(self, clusters: Sequence[Cluster], progress: Progress = silent, more: Mapping[str, Any] = ALL) -> Plan | None:
        """Return the best divided layout. ``more``: extent of the search, ``ALL`` or ``FEW``."""
        return self.plan(Space(clusters=tuple(clusters), **{**DIVIDED, **more}), FASTEST, progress)
