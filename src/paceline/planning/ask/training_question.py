"""The network, target and prices that every plan of one ``ask`` shares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from paceline.errors import NotMet, UserError
from paceline.hardware import Cluster
from paceline.hardware.prices import Price
from paceline.planning.ask.rentals import Rental
from paceline.planning.search.choice import Plan
from paceline.planning.search.goal import Goal
from paceline.planning.search.layouts import Progress, silent
from paceline.planning.search.plan import plan
from paceline.planning.search.space import MODEL_AXES, PLAIN_GRADIENTS, Space, axes, runs_divided, space_fields
from paceline.planning.search.training_target import TrainingTarget
from paceline.prediction import StepPredictor
from paceline.strategy import BUCKET_BYTES, Strategy
from paceline.strategy.parallelism import DIVIDING, MODEL
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
QUICK: Mapping[str, Any] = {
    **FEW,
    "tensors": (1, 2, 4, 8),
    "pipelines": (1, 2, 4, 8, 16, 32, 64),
    "shardings": (ZERO1.name,),
    "recomputes": (NO_RECOMPUTE.name, "selective:layernorm", FULL_RECOMPUTE.name),
}
"""Subset that is searched in a fraction of a second if the batch is fixed."""
ALL: Mapping[str, Any] = {}
"""All layouts, also with optimizer state in host memory."""

OF_JOB = ("task", "tokens_per_sample", "precision", "optimizer")
"""Choices that say what is trained and in which numbers, not how it is laid out."""


@dataclass(frozen=True)
class TrainingQuestion:
    """The network, target and prices of one question.

    ``choices``: the value, or several values, of each choice that the user stated, by name. ``micro_batch_sizes``: samples of a
    replica in a micro step, if stated.
    """

    workload: Workload
    target: TrainingTarget
    prices: Mapping[str, float | Price] | None
    predictor: StepPredictor
    choices: Mapping[str, Any] = field(default_factory=dict)
    micro_batch_sizes: tuple[int, ...] = ()

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

    def freed(self) -> Iterator[TrainingQuestion]:
        """Yield the question without one of the user's choices of a layout, then without any of them."""
        layout = [name for name in self.choices if name not in OF_JOB]
        if self.micro_batch_sizes:
            yield replace(self, micro_batch_sizes=())
        for name in layout:
            yield replace(self, choices={other: value for other, value in self.choices.items() if other != name})
        if len(layout) + bool(self.micro_batch_sizes) > 1:
            stated = {name: value for name, value in self.choices.items() if name in OF_JOB}
            yield replace(self, choices=stated, micro_batch_sizes=())

    def _stated(self, space: Space) -> Space:
        """Return the space with the user's choices."""
        values = {name: value if isinstance(value, tuple | list) else (value,) for name, value in self.choices.items()}
        fields = space_fields(values, (cluster.device for cluster in space.clusters))
        more = {"others": {**space.others, **fields.get("others", {})}, "micro_batch_sizes": self.micro_batch_sizes}
        return replace(space, **{**fields, **more})

    @property
    def states(self) -> bool:
        """True if the user stated choices."""
        return bool(self.choices or self.micro_batch_sizes)

    def check(self, cluster: Cluster) -> None:
        """Raise UserError if no strategy with the user's choices is legal on a cluster. NotMet is no such error."""
        try:
            self._plan(self._stated(Space(clusters=(cluster,), **PLAIN)), FASTEST, silent)
        except NotMet:
            return

    def plan(self, space: Space, goal: Goal = FASTEST, progress: Progress = silent) -> Plan | None:
        """Return the plan; None if nothing is legal, fits or meets the goal."""
        try:
            return self._plan(self._stated(space) if self.states else space, goal, progress)
        except UserError:
            return None

    def _plan(self, space: Space, goal: Goal, progress: Progress) -> Plan:
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

    def plain(self, clusters: Sequence[Cluster], goal: Goal = FASTEST) -> Plan | None:
        """Return the best of DDP and FSDP."""
        return self.plan(Space(clusters=tuple(clusters), **PLAIN), goal)

    def divided(self, clusters: Sequence[Cluster], progress: Progress = silent, more: Mapping[str, Any] = ALL) -> Plan | None:
        """Return the best divided layout. ``more``: extent of the search, ``ALL``, ``FEW`` or ``QUICK``.

        None with a framework that divides nothing, unless the user stated a division.
        """
        if not (self.choices.keys() & set(DIVIDING) or runs_divided(self.predictor.uncorrected.typical.framework)):
            return None
        return self.plan(Space(clusters=tuple(clusters), **{**DIVIDED, **more}), FASTEST, progress)

    def alike(self, cluster: Cluster, strategy: Strategy) -> Plan | None:
        """Return the best strategy on another cluster that is plain if this one is, else divided by the same sizes."""
        mesh = strategy.parallelism
        if mesh.model_devices == 1:
            return self.plain((cluster,))
        sizes = {axis: (getattr(mesh, name),) for axis, name in zip(axes(DIVIDING), DIVIDING, strict=True)}
        batches = self._batches(cluster, mesh.model_devices) or (strategy.global_batch_size,)
        return self.divided((cluster,), more={**QUICK, **sizes, "batches": batches})

    def quick(self, cluster: Cluster, batch: int = 0) -> Plan | None:
        """Return the best of the usual layouts on one batch; 0: one sample for each device."""
        batches = self._batches(cluster) or (batch or cluster.world_size * max(self.micro_batch_sizes or (1,)),)
        return self.divided((cluster,), more={**QUICK, "batches": batches})

    def _batches(self, cluster: Cluster, model_devices: int = 0) -> tuple[int, ...]:
        """Return the batches of a stated micro batch and a stated number of micro steps on a cluster; empty without both.

        Args:
            model_devices: devices of one replica; 0: what is stated, and powers of two of it if dimensions are free.
        """
        times = self.choices.get("grad_accum_steps")
        if times is None or not self.micro_batch_sizes:
            return ()
        stated = {name: self.choices[name] for name in MODEL if isinstance(self.choices.get(name), int)}
        least, world = model_devices or prod(stated.values()), cluster.world_size
        widths = (least,) if model_devices or len(stated) == len(MODEL) else (least * 2**n for n in range(4))
        replicas = {world // width for width in widths if world % width == 0}
        counts = times if isinstance(times, tuple | list) else (times,)
        return tuple(sorted({n * size * count for n in replicas for size in self.micro_batch_sizes for count in counts}))
