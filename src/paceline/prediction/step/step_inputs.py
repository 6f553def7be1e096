"""Inputs of one step, checked: the network with its attention kernel, the machines, and a settled strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from paceline.calibration.constants import Efficiency
from paceline.errors import UserError, shown
from paceline.hardware.cluster import Cluster
from paceline.prediction.passes.attention_kernel import check_kernel
from paceline.prediction.passes.computed_layers import as_computed
from paceline.prediction.passes.recompute import check_recompute
from paceline.strategy.strategy import Strategy
from paceline.workload.layers import LayerTable
from paceline.workload.prepared import once
from paceline.workload.table import Workload


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Network, machines and strategy of one step, legal together.

    Attributes:
        workload: the network, with scores in memory if its attention is not fused.
        strategy: without open choices (``Strategy.settled``).
    """

    workload: Workload
    cluster: Cluster
    strategy: Strategy

    @classmethod
    def of(
        cls,
        workload: Workload,
        cluster: Cluster,
        strategy: Strategy,
        constants: Efficiency,
        kernel: str = "",
        year: float = 0.0,
    ) -> Self:
        """Check a step's inputs and settle its strategy.

        Args:
            constants: the predictor's. ``kernel``: its requested kernel of attention. ``year``: year of its software.

        Raises:
            UserError: a value of another type; another number of workers than devices; a kernel that does not run there.
        """
        check_inputs(workload, cluster, strategy)
        check_loss(workload, strategy)
        check_kernel(kernel, workload, cluster.device, strategy.precision, year)
        network = as_computed(workload, constants)
        check_recompute(network, strategy.parallelism)
        strategy.parallelism.check_covers(cluster.world_size)
        return cls(network, cluster, strategy.settled(network, cluster).under(constants.framework))


def check_loss(workload: Workload, strategy: Strategy) -> None:
    """Raise UserError if a strategy names a loss over the vocabulary for a network without one."""
    if strategy.loss and not _has_loss(workload):
        raise UserError(f"loss {strategy.loss}: {workload.name} has no loss over a vocabulary", "leave loss out")


@once
def _has_loss(workload: Workload) -> bool:
    return any(layer.kind == "loss" for layer in workload.layers) and any(layer.is_logits for layer in workload.layers)


def check_inputs(workload: object, cluster: object, strategy: object) -> None:
    """Raise UserError if one of the three inputs has another type."""
    if isinstance(workload, LayerTable) and isinstance(cluster, Cluster) and isinstance(strategy, Strategy):
        return
    for value, kind, name in (
        (workload, LayerTable, "Workload"),
        (cluster, Cluster, "Cluster"),
        (strategy, Strategy, "Strategy"),
    ):
        if not isinstance(value, kind):
            raise UserError(f"{name.casefold()} {shown(value)}", f"give a paceline.{name}; the verbs of paceline take names")
