"""The engine's own ring all-reduce, for formats whose numbers can be added."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.strategy import Format
from paceline.training.wire import Wire


def allreduce(values: NDArray[np.float32], fmt: Format, wire: Wire) -> None:
    """Replace fp32 ``values`` by their mean over the workers; a 16-bit format halves the bytes and adds in bfloat16."""
    tensor = torch.from_numpy(values)
    with wire.meter.span("encode", "codec"):
        buffer = tensor.to(wire.device, torch.float32 if fmt.element_bits == 32 else torch.bfloat16)
    wire.all_reduce(buffer)
    with wire.meter.span("decode", "codec"):
        torch.div(buffer.to("cpu", torch.float32), wire.world_size, out=tensor)
