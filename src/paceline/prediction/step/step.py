"""One training step: when it ends, what it waits for, what it sends and keeps. Two kinds: a whole network, and a mesh."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

from paceline.prediction.passes.compute import Resource, Seconds
from paceline.record import Event


class Step(ABC):
    """One training step of a strategy on a cluster.

    Final classes: ``WholeStep``, where each device holds the whole network, and ``MeshStep``, where several devices hold it.
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
        """Seconds in which the input pipeline delivers the samples of the step."""

    @property
    @abstractmethod
    def kernels(self) -> tuple[Seconds, Seconds]:
        """Seconds of the forward and of the backward pass, by layer."""

    @property
    @abstractmethod
    def wire_bytes(self) -> int:
        """Bytes sent by the device that sends most."""

    @property
    @abstractmethod
    def dense_wire_bytes(self) -> int:
        """Bytes that the same device sends without compression."""

    @property
    def stage_work_s(self) -> tuple[float, ...]:
        """Seconds of work of each pipeline stage; empty without a pipeline."""
        return ()

    @abstractmethod
    def busy_s(self, lane: Literal["network", "codec"]) -> float:
        """Seconds that a lane works."""

    @abstractmethod
    def memory(self) -> dict[str, float]:
        """Bytes by purpose on the device that needs most."""

    @abstractmethod
    def seconds_with_links(self, between: float, inside: float) -> float:
        """Seconds of the step if collectives between nodes and inside them take ``between`` and ``inside`` times as long."""

    @abstractmethod
    def events(self) -> tuple[Event, ...]:
        """The step as bars of a timeline, waits included."""
