"""Ring all-reduce of the engine, for formats whose numbers can be added."""

from __future__ import annotations

from collections.abc import Callable

import torch

from paceline.strategy import Format
from paceline.training.exchanges.wires.collectives import Wire


def begin_allreduce(values: torch.Tensor, fmt: Format, wire: Wire) -> Callable[[], None]:
    """Start to replace ``values`` by their mean over the workers. Returns a function that waits for the mean.

    A 16-bit format halves fp32's bytes and adds in bfloat16. As in stock DDP each rank multiplies by 1 / N first, so that a sum
    of fp16 does not overflow; fp32 gives stock DDP's bits.
    """
    with wire.meter.span("encode", "codec"):
        buffer = values.mul_(1 / wire.world_size).to(wire.device, torch.bfloat16 if fmt.element_bits == 16 else values.dtype)
    pending = wire.all_reduce(buffer)

    def end() -> None:
        pending.wait()
        if buffer is not values:
            with wire.meter.span("decode", "codec"):
                values.copy_(buffer)

    return end


def allreduce(values: torch.Tensor, fmt: Format, wire: Wire) -> None:
    """Run ``begin_allreduce`` and wait for it."""
    begin_allreduce(values, fmt, wire)()
