"""Offload of training state from the device's memory to the host's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, final

from paceline.strategy.choices.values import Value


class Offload(Value):
    """State of training that is in the host's memory.

    Attributes:
        optimizer: True for optimizer state and fp32 master weights, which the host updates.
        weights: True for the shares of the weights too, which are copied to the device before each all-gather.
    """

    __slots__ = ()
    known: ClassVar[dict[str, Any]]
    optimizer: ClassVar[bool] = False
    weights: ClassVar[bool] = False

    def __bool__(self) -> bool:
        return self.optimizer


@final
class NoOffload(Offload):
    """No offload: everything is on the device."""

    __slots__ = ()
    name = "none"


@final
class OffloadOptimizer(Offload):
    """Offload of the optimizer: each worker's host updates its part (Ren et al. 2021, ZeRO-Offload, arXiv:2101.06840)."""

    __slots__ = ()
    name = "optimizer"
    optimizer = True


@final
class OffloadWeights(Offload):
    """Offload of the optimizer and the weights to each worker's host (Rajbhandari et al. 2021, ZeRO-Infinity, arXiv:2104.07857;
    PyTorch FSDP, ``CPUOffload``).
    """

    __slots__ = ()
    name = "weights+optimizer"
    optimizer = weights = True


NO_OFFLOAD, OFFLOAD_OPTIMIZER, OFFLOAD_WEIGHTS = NoOffload(), OffloadOptimizer(), OffloadWeights()
OFFLOADS: Mapping[str, Offload] = Offload.known
"""All offloads by name."""
