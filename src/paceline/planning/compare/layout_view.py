"""What pictures of a layout show: when each stage works, what its memory holds, which devices form a replica."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paceline.hardware import Cluster
from paceline.prediction import Predictor
from paceline.prediction.mesh.mesh_step import mesh_step
from paceline.prediction.mesh.pipeline import Pass
from paceline.strategy import Parallelism, Strategy
from paceline.workload.table import Workload

__all__ = ["LayoutView", "Pass", "Place", "layout_view"]


@dataclass(frozen=True, slots=True)
class Place:
    """A device of the mesh: its rank, and its place in each dimension."""

    rank: int
    stage: int
    replica: int
    context: int
    tensor: int


@dataclass(frozen=True, kw_only=True)
class LayoutView:
    """A step on a mesh of devices that hold the network together.

    Attributes:
        nodes: devices of each node.
        passes: of each stage, in its order.
        stage_memory: bytes by purpose on a device of each stage. ``available``: what a device has.
        seconds: of the whole step, with exchange and update.
    """

    mesh: Parallelism
    nodes: tuple[int, ...]
    passes: tuple[tuple[Pass, ...], ...]
    stage_memory: tuple[Mapping[str, float], ...]
    available: float
    seconds: float

    def place(self, rank: int) -> Place:
        """Where a rank lies in the mesh (``strategy.parallelism.MESH``)."""
        mesh = self.mesh
        rest, tensor = divmod(rank, mesh.tensor)
        rest, context = divmod(rest, mesh.context)
        stage, replica = divmod(rest, mesh.data)
        return Place(rank, stage, replica, context, tensor)

    def node(self, number: int) -> range:
        """The ranks of a node."""
        first = sum(self.nodes[:number])
        return range(first, first + self.nodes[number])

    def first_replica(self) -> Iterator[Place]:
        """The devices of replica 0, stage after stage."""
        for stage in range(self.mesh.pipeline):
            first = stage * self.mesh.stage_devices
            for rank in range(first, first + self.mesh.context * self.mesh.tensor):
                yield self.place(rank)

    @property
    def idle(self) -> float:
        """Share of the time until the last pass that stages do not compute, on average."""
        end = max(own[-1].end_s for own in self.passes)
        worked = sum(p.end_s - p.start_s for own in self.passes for p in own)
        return 1 - worked / (end * len(self.passes)) if end else 0.0


def layout_view(workload: Workload, cluster: Cluster, strategy: Strategy, predictor: Predictor) -> LayoutView | None:
    """The view of a strategy; None where each device holds the network whole. Without the correction of observed steps.

    Raises:
        UserError: as ``Predictor.step``.
    """
    if strategy.parallelism.model_devices == 1:
        return None
    model = predictor.uncorrected.model(workload)
    step = mesh_step(model, cluster, strategy.settled(workload, cluster))
    return LayoutView(
        mesh=strategy.parallelism,
        nodes=cluster.node_sizes,
        passes=step.pipeline.passes,
        stage_memory=tuple(step.stage_memory(number) for number in range(len(step.steps))),
        available=cluster.device.memory.value,
        seconds=step.seconds,
    )
