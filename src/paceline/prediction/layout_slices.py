"""What decides the work of one device in a layout, and a network that asks the model what it counts for an element."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.hardware.precision import BYTES_PER_ELEMENT
from paceline.prediction.exchange_plan import kept
from paceline.strategy.parallelism import Parallelism
from paceline.workload.layers import Parameter
from paceline.workload.table import Workload

PROBE = 1 << 26
"""Elements of a tensor that asks the model for its bytes per element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What decides the work of one device on one micro batch, but for the stages."""

    tensor: int
    sequence: bool
    context: int
    context_exchange: str
    precision: str
    micro_batch_size: int
    recompute: str
    expert: int = 1

    @property
    def division(self) -> tuple[int, bool, int, str, int]:
        """What the layers are divided by."""
        return self.tensor, self.sequence, self.context, self.context_exchange, self.expert

    def mesh(self) -> Parallelism:
        """The division of the layers alone."""
        return Parallelism(
            data=self.expert,
            tensor=self.tensor,
            sequence=self.sequence,
            context=self.context,
            context_exchange=self.context_exchange,
            expert=self.expert,
        )

    @property
    def width(self) -> float:
        """Bytes of a number that the network computes on, over those of fp32."""
        return BYTES_PER_ELEMENT[self.precision] / 4


def probe_network(workload: Workload, tensors: int, frozen: int) -> Workload:
    """A network of so many equal tensors, a block each: what it needs says what the model counts for an element."""

    def make() -> Workload:
        parameters = tuple(
            Parameter(name=f"layers.{n}.weight", shape=(PROBE,), layer=0, ready=tensors - 1 - n) for n in range(tensors)
        )
        return replace(workload, layers=workload.layers[:1], parameters=parameters, frozen=frozen)

    return kept(workload, ("probe", tensors, frozen), make)
