"""Agreement of all ranks on whether their gradients are fit for a codec, and on the scale of each tensor.

On a GPU nothing is read before the ranks have agreed: one small reduction a group of gradients, and one wait for its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from paceline.codecs import Codec
from paceline.codecs.arrays import on_host
from paceline.codecs.moments import Moments
from paceline.training.exchanges.gradients.gradient_statistics import LARGEST, is_finite, moments, peak, queued_statistics
from paceline.training.exchanges.wires.collectives import Wire


class Agreement(NamedTuple):
    """Agreement of all ranks about their gradients.

    Attributes:
        fit: whether the codec can encode all gradients of all ranks.
        moments, own, agreed: for each part of this rank its statistics, its own bound and the agreed bound; empty for a codec
            without agreement.
    """

    fit: bool
    moments: Sequence[Moments] = ()
    own: Sequence[float] = ()
    agreed: Sequence[float] = ()


class Shared(NamedTuple):
    """Numbers that ranks share: one for each of ``tensors``, with this rank's parts from ``first`` on."""

    first: int
    tensors: int


def agree(
    codec: Codec, wire: Wire, parts: Sequence[torch.Tensor], shared: Shared, kept: torch.Tensor, dense: bool
) -> Agreement:
    """Agree with the other ranks on whether every gradient is fit and on the largest values.

    Args:
        parts: gradients that the codec encodes, fp32.
        shared: place of the parts among the tensors of all ranks; no places for a codec without agreement.
        kept: gradients that it does not encode.
        dense: True to call the gradients of this rank unfit.
    """
    if on_host(kept) and all(map(on_host, parts)):
        return _on_host(codec, wire, parts, shared, kept, dense)
    with wire.meter.span("scale", "codec"):
        device = wire.device
        table = queued_statistics(parts, codec.agrees, device)  # (parts, 2): sigma and peak
        fit = table[:, 1].le(LARGEST).all() & torch.isfinite(kept).all().to(device) & (not dense)
        own = codec.prepare_each(table[:, 0], table[:, 1]) if codec.agrees else table[:0, 1]
        numbers = torch.zeros(1 + shared.tensors, dtype=torch.float32, device=device)
        numbers[0] = ~fit
        numbers[1 + shared.first : 1 + shared.first + own.shape[0]] = own
    wire.all_reduce(numbers, dist.ReduceOp.MAX, "scales").wait()
    unfit, *rest = torch.cat([numbers, own, table.flatten()]).tolist()
    agreed, rest = rest[: shared.tensors], rest[shared.tensors :]
    bounds, statistics = rest[: own.shape[0]], rest[own.shape[0] :]
    found = [Moments(np.float32(s), np.float32(p)) for s, p in zip(statistics[::2], statistics[1::2], strict=True)]
    here = slice(shared.first, shared.first + len(bounds))
    return Agreement(not unfit, found if codec.agrees else [], bounds, agreed[here])


def _on_host(
    codec: Codec, wire: Wire, parts: Sequence[torch.Tensor], shared: Shared, kept: torch.Tensor, dense: bool
) -> Agreement:
    with wire.meter.span("scale", "codec"):
        found = [moments(part) for part in parts] if codec.agrees else []
        own = [codec.prepare(m) for m in found]
        peaks = (m.peak for m in found) if codec.agrees else (peak(part) for part in parts)
        fit = not dense and is_finite(kept) and all(largest <= LARGEST for largest in peaks)
    numbers = [0.0] * shared.tensors
    numbers[shared.first : shared.first + len(own)] = own
    with wire.pool.lent() as buffers:
        memory = buffers.floats(1 + shared.tensors, wire.device)
        memory.copy_(torch.tensor([float(not fit), *numbers], dtype=torch.float32))
        unfit, *largest = wire.all_reduce(memory, dist.ReduceOp.MAX, "scales").wait().tolist()
    return Agreement(not unfit, found, own, largest[shared.first : shared.first + len(own)])
