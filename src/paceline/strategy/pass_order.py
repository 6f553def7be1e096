"""Orders of a pipeline's passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, final

from paceline.strategy.choices.values import Value


class PassOrder(Value, ABC):
    """Order of the forward and backward passes on each stage of a pipeline.

    Attributes:
        interleaves: True if a stage can have several parts of the network (virtual stages).
        splits_backward: True if gradients of weights are a separate pass, after that of the inputs.
        in_turns: True if forward and backward passes alternate, which bounds the micro batches in flight.
    """

    __slots__ = ()
    known: ClassVar[dict[str, Any]]
    interleaves: ClassVar[bool] = False
    splits_backward: ClassVar[bool] = False
    in_turns: ClassVar[bool] = True

    @abstractmethod
    def warm_up(self, stage: int, stages: int, passes: int, virtual: int = 1) -> int:
        """Return the number of forward passes of a stage before its passes alternate.

        Args:
            stage: number of the stage, from 0.
            passes: all forward passes of the stage: micro batches times parts.
            virtual: parts of the network on each stage.
        """


@final
class OneForwardOneBackward(PassOrder):
    """Order 1F1B: forward and backward passes alternate as early as possible (Narayanan et al. 2021, arXiv:2104.04473, 2.2)."""

    __slots__ = ()
    name = "1f1b"
    interleaves = True

    def warm_up(self, stage: int, stages: int, passes: int, virtual: int = 1) -> int:
        """Return the number of forward passes until the first micro batch returns; see ``PassOrder.warm_up``."""
        behind = stages - stage - 1
        return min(behind if virtual == 1 else 2 * behind + (virtual - 1) * stages, passes)


@final
class GPipe(PassOrder):
    """Order of all forward passes, then all backward passes (Huang et al. 2019, GPipe, arXiv:1811.06965)."""

    __slots__ = ()
    name = "gpipe"
    in_turns = False

    def warm_up(self, stage: int, stages: int, passes: int, virtual: int = 1) -> int:
        """Return the number of all forward passes."""
        del stage, stages, virtual
        return passes


@final
class ZeroBubble(PassOrder):
    """Order 1F1B in which gradients of weights fill the waits (ZB-H1; Qi et al. 2024, arXiv:2401.10241, 2.2)."""

    __slots__ = ()
    name = "zero_bubble"
    splits_backward = True

    def warm_up(self, stage: int, stages: int, passes: int, virtual: int = 1) -> int:
        """Return the number of 1F1B; see ``PassOrder.warm_up``."""
        return ONE_FORWARD_ONE_BACKWARD.warm_up(stage, stages, passes, virtual)


ONE_FORWARD_ONE_BACKWARD, GPIPE, ZERO_BUBBLE = OneForwardOneBackward(), GPipe(), ZeroBubble()
SCHEDULES: Mapping[str, PassOrder] = PassOrder.known
"""All orders by name."""
