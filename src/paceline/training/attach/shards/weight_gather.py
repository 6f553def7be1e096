"""All-gathers of sharded weights in fewer bits (Wang et al. 2023, ZeRO++, arXiv 2306.10209, section 3.1: qwZ)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist

from paceline import codecs
from paceline.codecs import Key
from paceline.codecs.reference.dense import Fp32
from paceline.codecs.reference.fp8 import Fp8
from paceline.codecs.reference.integer import Int8
from paceline.training.exchanges.gradients.tensor_layout import Layout, TensorSpec
from paceline.training.exchanges.wires.collectives import ALL_GATHER, collective, sent_by_rank
from paceline.training.exchanges.wires.message_buffers import BufferPool, Buffers
from paceline.training.exchanges.wires.meter import Meter

BLOCK = 1024
"""Weights that share a scale."""
CODECS = {"int8": Int8(block=BLOCK), "fp8": Fp8(block=BLOCK)}
"""Formats of 8 bits. Their messages are equally long."""
DRAWS = 1 << 48
"""Draws of a unit's weights. The gradients of all units have the first so many, as their elements are numbered."""


class WeightGather:
    """All-gather of the shards of a unit's weights in fewer bits. Every rank gets the same weights, its own shard included.

    In 8 bits every tensor begins with a block, so that none takes its scale from a neighbour. Tensors whose shard is below a
    quarter of a block, such as biases and norms, follow the coded message as they are.

    A shard with a NaN or an infinity, which no code stands for, becomes all NaN on every rank, but for these small tensors.

    Over another group than ``shards`` nothing is rounded: FSDP2 gathers there the values that it gathered in fewer bits before
    (``reshard_after_forward`` as a number, ZeRO++'s hpZ).

    Args:
        bits: 16 for bfloat16, 8 for codes with a scale a block; 0, or as many as the weights have, sends them as they are.
        shards: the ranks that share the weights out.
        meter: counts the bytes.
        number: number of the unit, from 0, those without gradients too: each has separate draws.
        timeout_s: how long a CPU waits for the shard of another rank, whatever timeout the group has.
        pool: memory for messages, of all units: one gathers at a time.
        tensors: elements of a shard by tensor, in FSDP2's order. Shards of another length, which tensors with extensions of
            their gathers have, are coded as one tensor.
        form: format of 8 bits, a key of ``CODECS``.
    """

    def __init__(
        self,
        bits: int,
        shards: dist.ProcessGroup,
        meter: Meter,
        number: int,
        timeout_s: float,
        pool: BufferPool,
        tensors: Sequence[int] = (),
        form: str = "int8",
    ) -> None:
        self.bits, self._meter, self._first, self._pool = bits, meter, DRAWS * (1 + number), pool
        self._ranks = dist.get_process_group_ranks(shards)
        self._codec, self._timeout = CODECS[form], timedelta(seconds=timeout_s)
        self._tensors = tuple(tensors)

    def __call__(
        self, whole: torch.Tensor, shard: torch.Tensor, group: dist.ProcessGroup, draws: Key, async_op: bool
    ) -> dist.Work | None:
        """Fill ``whole``, (ranks x shard), with the shards of all ranks of ``group`` in their order.

        Args:
            draws: seed of the stochastic rounding. FSDP2 gathers weights twice in a step, and equal draws give equal weights.

        Returns:
            The argument of ``wait``, or None if ``whole`` is filled already.

        Raises:
            WireError: a rank is lost, or has not answered in time.
            PayloadError: the coded weights of a rank arrived damaged.
        """
        narrow = {16: 2, 8: 1}.get(self.bits, 8) < whole.element_size() and whole.dtype.is_floating_point
        if not narrow or dist.get_process_group_ranks(group) != self._ranks:
            work = self._start(whole, shard, group)
            if async_op:
                return work
            self.wait(work, whole)
        elif self.bits == 16:
            self._gather_bf16(whole, shard, group)
        else:
            self._gather_coded(whole, shard, group, draws)
        return None

    def wait(self, work: dist.Work, whole: torch.Tensor) -> bool:
        """Wait until ``whole`` is filled; on a GPU the stream waits. Raises WireError like a call."""
        with collective():
            return work.wait(self._timeout) if whole.device.type == "cpu" else work.wait()

    def _gather_bf16(self, whole: torch.Tensor, shard: torch.Tensor, group: dist.ProcessGroup) -> None:
        with self._pool.lent() as buffers:
            message = buffers.take(2 * shard.numel(), shard.device).view(torch.bfloat16).copy_(shard)
            whole.copy_(self._gathered(message, group, buffers))

    def _gather_coded(self, whole: torch.Tensor, shard: torch.Tensor, group: dist.ProcessGroup, draws: Key) -> None:
        count = shard.numel()
        layout = _layout(self._tensors if sum(self._tensors) == count else (count,))
        coded, small = layout.compressed, layout.total - layout.compressed
        size = codecs.max_payload_bytes(self._codec, coded) if coded else 0
        with self._pool.lent() as buffers:
            message = buffers.take(size + small * shard.element_size(), shard.device)
            # One buffer for this rank's values and then for those of every rank; none if the shard is coded in place.
            in_place = shard.dtype == torch.float32 and coded == count
            values = None if in_place else buffers.floats(coded, shard.device)
            rest = message[size:].view(shard.dtype)
            if values is None:
                self._encode(shard, draws, message)
            else:
                _pack(layout, shard, values, rest)
                self._encode(values, draws, message[:size])
            arrived = self._gathered(message, group, buffers).view(group.size(), -1)
            for rank, part, received in zip(self._ranks, whole.view(group.size(), -1), arrived, strict=True):
                self._decode(rank, received[:size], part if values is None else values)
                if values is not None:
                    _unpack(layout, values, received[size:].view(shard.dtype), part)

    def _encode(self, values: torch.Tensor, draws: Key, message: torch.Tensor) -> None:
        """Write the message of this rank's values, or that of NaN if no code stands for them."""
        if not values.numel():
            return
        try:
            codecs.encode(self._codec, values, draws, self._first, out=message)
        except ValueError:
            if bool(values.isfinite().all()):
                raise
            message.copy_(_nan_message(message.numel(), values.device))

    def _decode(self, rank: int, message: torch.Tensor, values: Any) -> None:
        """Fill ``values`` from the message of a rank."""
        if not message.numel():
            return
        try:
            with sent_by_rank(rank):
                codecs.decode(message, values, only=(type(self._codec),))
        except codecs.PayloadError:
            if not torch.equal(message, _nan_message(message.numel(), message.device)):
                raise
            values.fill_(torch.nan)

    def _gathered(self, message: torch.Tensor, group: dist.ProcessGroup, buffers: Buffers) -> torch.Tensor:
        arrived = buffers.take(group.size() * message.nbytes, message.device).view(message.dtype)
        self.wait(self._start(arrived, message, group), arrived)
        return arrived

    def _start(self, whole: torch.Tensor, shard: torch.Tensor, group: dist.ProcessGroup) -> dist.Work:
        self._meter.sent_bytes += whole.nbytes - shard.nbytes
        with collective():
            return getattr(dist, ALL_GATHER)(whole, shard, group=group, async_op=True)  # type: ignore[no-any-return]


@lru_cache(maxsize=1024)
def _layout(sizes: tuple[int, ...]) -> Layout:
    """Return the layout of a shard with tensors of these elements."""
    starts = (sum(sizes[:number]) for number in range(len(sizes)))
    return Layout([TensorSpec(str(start), (size,), start) for start, size in zip(starts, sizes, strict=True)], (), BLOCK)


def _pack(layout: Layout, shard: torch.Tensor, values: torch.Tensor, rest: torch.Tensor) -> None:
    """Copy the tensors of a shard to the values that are coded, with zeros as padding, and to the rest."""
    for tensor, start, stop in layout.pieces:
        here = values[start:stop] if stop <= layout.compressed else rest[start - layout.compressed : stop - layout.compressed]
        here.copy_(shard[tensor.offset : tensor.offset + tensor.elements])
    for start, stop in layout.gaps:
        values[start:stop] = 0


def _unpack(layout: Layout, values: torch.Tensor, rest: torch.Tensor, shard: torch.Tensor) -> None:
    """Copy decoded values and the rest to their places in a shard; inverts ``_pack``."""
    for tensor, start, stop in layout.pieces:
        here = values[start:stop] if stop <= layout.compressed else rest[start - layout.compressed : stop - layout.compressed]
        shard[tensor.offset : tensor.offset + tensor.elements].copy_(here)


def _nan_message(size: int, device: torch.device) -> torch.Tensor:
    """Return a message of this many bytes that means a shard of NaN: the fp32 payload of one NaN, then zeros."""
    message = torch.zeros(size, dtype=torch.uint8)
    codecs.encode(Fp32(), torch.tensor([torch.nan], dtype=torch.float32), out=message)
    return message.to(device)
