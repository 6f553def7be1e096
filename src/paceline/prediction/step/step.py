"""A training step: its end, its waits, its traffic and its memory. There are two kinds: for a whole network, and for a mesh."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

from paceline.prediction.passes.compute import Resource, Seconds
from paceline.record import Event


class Step(ABC):
    """One training step of a strategy on a cluster.

    Final classes: ``WholeStep`` if each device holds the whole network, ``MeshStep`` if several devices hold it, ``WorkerStep``
    of groups of devices that take local steps (``PeerStep`` if they leave late ones behind), ``TaskStep`` and ``LengthStep`` of
    other tasks and lengths.
    """

    @property
    @abstractmethod
    def seconds(self) -> float:
        """Seconds of the step."""

    @property
    @abstractmethod
    def exposed(self) -> Mapping[Resource, float]:
        """Seconds by the resource that the step waits for. They sum to the step."""

    @property
    @abstractmethod
    def waited_s(self) -> float:
        """Seconds that the step waits for exchanges and sends."""

    @property
    @abstractmethod
    def feed_s(self) -> float:
        """Seconds that the input pipeline needs for the samples of the step."""

    @property
    @abstractmethod
    def kernels(self) -> tuple[Seconds, Seconds]:
        """Seconds of the kernels of the forward and of the backward pass, by layer."""

    @property
    @abstractmethod
    def wire_bytes(self) -> int:
        """Bytes sent by the device that sends most."""

    @property
    @abstractmethod
    def dense_wire_bytes(self) -> int:
        """Bytes that the same device sends without compression."""

    @property
    def counted(self) -> float:
        """Share of the workers' steps that count in the trained model; below 1 if late workers are left behind."""
        return 1.0

    @property
    def stage_work_s(self) -> tuple[float, ...]:
        """Seconds of work of each pipeline stage; empty without a pipeline."""
        return ()

    @abstractmethod
    def busy_s(self, lane: Literal["network", "codec"]) -> float:
        """Return the seconds that a lane is busy."""

    @abstractmethod
    def memory(self) -> dict[str, float]:
        """Return bytes by purpose on the device that needs most memory."""

    @abstractmethod
    def seconds_with_links(self, between: float, inside: float) -> float:
        """Return the step's seconds with factors ``between`` and ``inside`` on collectives between nodes and inside them."""

    @abstractmethod
    def events(self) -> tuple[Event, ...]:
        """Return the step as bars of a timeline, including its waits."""
