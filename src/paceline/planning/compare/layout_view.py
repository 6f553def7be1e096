"""Data for pictures of a layout: passes and memory of each stage, and the devices of a replica."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paceline.hardware import Cluster
from paceline.prediction import StepPredictor
from paceline.prediction.mesh.mesh_step import mesh_step
from paceline.prediction.mesh.pipeline import Pass
from paceline.strategy import Parallelism, Strategy
from paceline.workload.table import Workload

__all__ = ["DevicePlace", "LayoutView", "Pass", "layout_view"]


@dataclass(frozen=True, slots=True)
class DevicePlace:
    """A device of the mesh: its rank, and its coordinate in each dimension."""

    rank: int
    stage: int
    replica: int
    context: int
    tensor: int


@dataclass(frozen=True, kw_only=True)
class LayoutView:
    """A step on a mesh of devices that divide the network.

    Attributes:
        nodes: devices of each node.
        passes: passes of each stage, in its order.
        stage_memory: bytes by purpose on a device of each stage. ``available``: bytes of a device.
        seconds: seconds of the whole step, with exchange and update.
    """

    mesh: Parallelism
    nodes: tuple[int, ...]
    passes: tuple[tuple[Pass, ...], ...]
    stage_memory: tuple[Mapping[str, float], ...]
    available: float
    seconds: float

    def place(self, rank: int) -> DevicePlace:
        """Return the coordinates of a rank in the mesh (``strategy.parallelism.MESH``)."""
        mesh = self.mesh
        rest, tensor = divmod(rank, mesh.tensor)
        rest, context = divmod(rest, mesh.context)
        stage, replica = divmod(rest, mesh.data)
        return DevicePlace(rank, stage, replica, context, tensor)

    def node(self, number: int) -> range:
        """Return the ranks of a node."""
        first = sum(self.nodes[:number])
        return range(first, first + self.nodes[number])

    def first_replica(self) -> Iterator[DevicePlace]:
        """Yield the devices of replica 0, stage after stage."""
        for stage in range(self.mesh.pipeline):
            first = stage * self.mesh.stage_devices
            for rank in range(first, first + self.mesh.context * self.mesh.tensor):
                yield self.place(rank)

    @property
    def idle(self) -> float:
        """Mean share of the time until the last pass in which stages do not compute."""
        end = max(own[-1].end_s for own in self.passes)
        worked = sum(p.end_s - p.start_s for own in self.passes for p in own)
        return 1 - worked / (end * len(self.passes)) if end else 0.0


def layout_view(workload: Workload, cluster: Cluster, strategy: Strategy, predictor: StepPredictor) -> LayoutView | None:
    """Return the view of a strategy; None if each device holds the whole network. Observed steps do not correct it.

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
