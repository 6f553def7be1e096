"""Collectives of the engine inside a node, for fp32 numbers or bfloat16."""

from __future__ import annotations

import torch

from paceline.training.exchanges.wires.collectives import Wire


def reduce_scatter(wire: Wire, part: torch.Tensor, whole: torch.Tensor, narrow: bool) -> torch.Tensor:
    """Write the sum over the ranks of this rank's equal part of ``whole`` into ``part``, and return it.

    Args:
        narrow: True to send bfloat16.
    """
    with wire.pool.lent() as buffers:
        if not narrow or whole.element_size() <= 2:
            return wire.reduce_scatter(part, whole, "inner_reduce", buffers).wait()
        sent, arrived = (buffers.take(2 * of.numel(), of.device).view(torch.bfloat16).view(of.shape) for of in (whole, part))
        wire.reduce_scatter(arrived, sent.copy_(whole), "inner_reduce", buffers).wait()
        return part.copy_(arrived)


def all_gather(wire: Wire, whole: torch.Tensor, part: torch.Tensor, narrow: bool) -> None:
    """Write the ``part`` of all ranks, in rank order, into ``whole``, with equal bits on every rank."""
    if not narrow:
        wire.all_gather(whole, part, "inner_gather").wait()
        return
    with wire.pool.lent() as buffers:
        arrived, sent = (buffers.take(2 * of.numel(), of.device).view(torch.bfloat16) for of in (whole, part))
        wire.all_gather(arrived, sent.copy_(part), "inner_gather").wait()
        whole.copy_(arrived)
