"""The engine's own ring all-reduce, for formats whose numbers can be added."""

from __future__ import annotations

import torch

from paceline.strategy import Format
from paceline.training.wire import Wire


def allreduce(values: torch.Tensor, fmt: Format, wire: Wire) -> None:
    """Replace ``values`` by their mean over the workers; a 16-bit format halves fp32's bytes and adds in bfloat16."""
    with wire.meter.span("encode", "codec"):
        buffer = values.to(wire.device, torch.bfloat16 if fmt.element_bits == 16 else values.dtype)
    wire.all_reduce(buffer).wait()
    with wire.meter.span("decode", "codec"):
        torch.div(buffer.to(values.device, values.dtype), wire.world_size, out=values)
