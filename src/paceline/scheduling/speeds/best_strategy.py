"""Best strategy of a network on each number of devices: data, tensor and pipeline parallelism, sharding and recomputation.

Each number of devices is searched once. Strategies whose devices each hold the network are predicted together. Layouts that
divide the network are searched like ``plan`` does (``planning.search.layouts``). Only strategies that fit the memory count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning.compare.strategy_text import choices_text, saves_memory
from paceline.planning.search.layout_space import LayoutSpace, powers
from paceline.planning.search.layouts import search_layouts
from paceline.planning.search.ranking import PLAIN
from paceline.prediction import StepPredictor
from paceline.prediction.layouts.batch import Candidate
from paceline.scheduling.fleet import NodeGroup
from paceline.scheduling.speeds.profiles import packed
from paceline.strategy import Strategy
from paceline.strategy.optimizer import usual_optimizer
from paceline.strategy.recompute import FULL_RECOMPUTE, NO_RECOMPUTE
from paceline.strategy.sharding import DDP, TORCH_SHARDINGS
from paceline.strategy.strategy import CHOICES, LAYOUT
from paceline.workload import Workload

KEPT = tuple(name for name in LAYOUT if CHOICES[name].field != "micro_batches")
"""Choices that a job keeps if the policy changes no strategies.

The data dimension and the micro steps follow from the devices.
"""


@dataclass(frozen=True, slots=True)
class BestStrategy:
    """Strategy on some devices, with the seconds of its step."""

    cluster: Cluster
    strategy: Strategy
    step_s: float

    @property
    def text(self) -> str:
        """The strategy in words: ``zero3, tensor 2, 4 micro steps``."""
        return choices_text(self.strategy)

    @property
    def kept(self) -> dict[str, Any]:
        """Choices that a job keeps if the policy changes no strategies (``KEPT``)."""
        return {name: self.strategy.choice(name) for name in KEPT}


class BestStrategies:
    """Best strategies of a network with one global batch, on nodes of one type.

    Args:
        batch: samples a step, over all devices.
        usual: precision and optimizer of every strategy, unless ``stated`` names others.
        stated: fixed choices, with names and defaults of ``Strategy.of``. Micro steps are chosen unless they are named. None:
            every choice is free.
    """

    def __init__(
        self,
        workload: Workload,
        group: NodeGroup,
        batch: int,
        usual: Mapping[str, str],
        predictor: StepPredictor,
        stated: Mapping[str, Any] | None = None,
    ) -> None:
        self.workload, self.group, self.batch, self.stated = workload, group, batch, stated
        self._usual, self._predictor = {"optimizer": usual_optimizer(workload), **usual}, predictor
        self._best: dict[tuple[int, int, int], BestStrategy | None] = {}

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of devices to search: powers of two within a node, the node, doublings of nodes, and all nodes."""
        size, nodes = self.group.devices_per_node, self.group.nodes
        return tuple(sorted({*powers(size), *(size * count for count in powers(nodes)), self.group.devices}))

    def on(self, devices: int, nodes: int = 0, racks: int = 0) -> BestStrategy | None:
        """Return the best strategy on a number of devices; None if none fits.

        Args:
            nodes: nodes that hold the devices; 0: as few as possible. If they would hold different numbers of devices, the next
                larger number of equal nodes is assumed.
            racks: racks that hold the nodes; 0: as few as possible.
        """
        least = max(nodes, len(packed(devices, self.group.devices_per_node)))
        many = next(count for count in range(least, devices + 1) if devices % count == 0)
        key = devices, many, racks if racks > self.group.least_racks(many) else 0
        if key not in self._best:
            self._best[key] = self._searched(self.group.part((devices // many,) * many, key[2]))
        return self._best[key]

    def why_not(self, devices: int) -> str:
        """Return why nothing runs on a number of devices: the stated choices are illegal there, or do not fit the memory."""
        cluster = self.group.part(packed(devices, self.group.devices_per_node))
        if self.stated is not None and not (legal := list(self._undivided_candidates(cluster))):
            try:
                Strategy.of(**{**self._usual, **self.stated, "world_size": devices, "global_batch_size": self.batch})
            except UserError as error:
                return error.message
        refused = self._predictor.many(self.workload, legal).refused if self.stated is not None else {}
        if refused and len(refused) == len(legal):
            return next(iter(refused.values()))
        return f"it does not fit {devices} {self.group.device}"

    def relative_spread(self, devices: int) -> float:
        """Return half the 80 % range of the step, relative to it; inf if nothing fits."""
        best = self.on(devices)
        if best is None:
            return float("inf")
        prediction = self._predictor.step(self.workload, best.cluster, best.strategy)
        return (prediction.high_s - prediction.low_s) / 2 / prediction.step_time_s

    def _searched(self, cluster: Cluster) -> BestStrategy | None:
        whole = list(self._undivided_candidates(cluster))
        scored = self._predicted(whole) if whole else []
        if self.stated is None and cluster.world_size > 1:
            scored += self._divided(cluster)
        return min(scored, key=lambda of: of[0])[1] if scored else None

    def _predicted(self, candidates: list[Candidate]) -> list[tuple[float, BestStrategy]]:
        """Return the strategies that fit, with the score of a plan, which slightly penalizes unusual choices."""
        steps = self._predictor.many(self.workload, candidates)
        return [
            (seconds * (1 + PLAIN * strategy.detours), BestStrategy(cluster, strategy, seconds))
            for (cluster, strategy), seconds, fits in zip(candidates, steps.step_s.tolist(), steps.fits.tolist(), strict=True)
            if fits and seconds == seconds
        ]

    def _undivided_candidates(self, cluster: Cluster) -> Iterator[Candidate]:
        """Return candidates: the stated choices, or every sharding and recomputation, with every number of micro steps."""
        shardings = TORCH_SHARDINGS if cluster.world_size > 1 else (DDP.name,)
        free = [{"sharding": sharding, "recompute": again} for sharding, again in product(shardings, self._recomputations)]
        for chosen in free if self.stated is None else [self.stated]:
            stated = chosen.get("grad_accum_steps")
            for times in powers(self.batch) if stated is None else [stated]:
                choices = {**self._usual, **chosen, "grad_accum_steps": times, "world_size": cluster.world_size}
                with suppress(UserError):  # the batch or the devices do not divide so
                    yield cluster, Strategy.of(**choices, global_batch_size=self.batch)

    @cached_property
    def _recomputations(self) -> tuple[str, ...]:
        """Return the recomputation choices to try."""
        tried = (NO_RECOMPUTE, FULL_RECOMPUTE) if saves_memory(self.workload) else (NO_RECOMPUTE,)
        return tuple(again.name for again in tried)

    def _divided(self, cluster: Cluster) -> list[tuple[float, BestStrategy]]:
        space = LayoutSpace(
            batches=(self.batch,),
            precisions=(self._usual["precision"],),
            virtual_stages=(1,),
            shardings=TORCH_SHARDINGS,
            recomputes=self._recomputations,
            balanced=False,
            node_groups=False,
            optimizer=self._usual["optimizer"],
        )
        search = search_layouts(self.workload, cluster, space, predictor=self._predictor, keep=1)
        return self._predicted(list(search.candidates)) if search.candidates else []
