"""Activations in the host's memory: the bytes of each block, and the waits for their copies.

A block's bytes leave while the next block computes, and return while the next block runs backward. A device holds two blocks'
bytes at once: those that are copied and those that are computed (Transformer Engine, ``cpu_offload.py``, double buffering;
torchtune, ``_activation_offloading.py``). The last block's bytes stay, since its backward pass follows directly (Megatron-Core:
``cpu_offloading_num_layers`` is below the number of layers).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from paceline.array_types import Array, Ints
from paceline.hardware.precision import WIDE
from paceline.prediction.passes.compute import Seconds
from paceline.prediction.passes.recompute import block_names, recomputed
from paceline.strategy.offload import HostActivations
from paceline.strategy.recompute import Recompute
from paceline.workload.layers import Numbers
from paceline.workload.prepared import once
from paceline.workload.table import Workload

BUFFERS = 2
"""Blocks whose bytes a device holds at once."""


@dataclass(frozen=True, slots=True)
class BlocksOnHost:
    """Blocks that keep bytes in the host's memory, in forward order.

    Attributes:
        ends: the last layer of each block, (blocks,).
        sizes: bytes of one sample of each block, (blocks,).
        whole: True if the last of them is the network's last block.
    """

    ends: Ints
    sizes: Array
    whole: bool

    @property
    def kept_bytes(self) -> float:
        """Bytes of one sample that the device does not store."""
        return float(self.sizes.sum())

    @property
    def buffer_bytes(self) -> float:
        """Bytes of one sample that the device holds while it copies."""
        return float(np.sort(self.sizes)[-BUFFERS:].sum())


@once
def blocks_on_host(
    workload: Workload, choice: Recompute, on_host: HostActivations, numbers: Numbers = "fp32", precision: str = WIDE
) -> BlocksOnHost:
    """Return the blocks and their bytes; cached. Args as ``recomputed``."""
    plan = recomputed(workload, choice, numbers, precision)
    blocks = list(block_names(workload).values())
    again = {last for last, _ in plan.names}
    chosen = [own for own in blocks[: on_host.layers or None] if not on_host.checkpoints or own[-1] in again]
    sizes = np.array([sum(plan.kept[i] for i in own) for own in chosen])
    ends = np.array([own[-1] for own in chosen], dtype=np.int64)
    return BlocksOnHost(ends, sizes, bool(chosen) and chosen[-1] is blocks[-1])


def with_copies(
    passes: tuple[Seconds, Seconds], work: tuple[Array, Array], copies_s: Array, blocks: BlocksOnHost
) -> tuple[Seconds, Seconds]:
    """Return the passes with their waits for copies of activations.

    Args:
        work: seconds of each layer that copies overlap, forward, and backward with recomputation, (layers,) each.
        copies_s: seconds of the copy of each block in one direction, (blocks,).
    """
    if not len(blocks.ends):
        return passes
    copied = copies_s * np.where(np.arange(len(copies_s)) == len(copies_s) - 1, not blocks.whole, True)
    layers = len(work[0])
    until = np.append(blocks.ends[1:], layers - 1)  # the last layer that a copy overlaps
    waited: list[Array] = []
    for seconds, at in zip(work, (until, blocks.ends), strict=True):
        total = np.concatenate(([0.0], np.cumsum(seconds)))
        waits = np.maximum(0.0, copied - (total[until + 1] - total[blocks.ends + 1]))
        waited.append(np.bincount(at, waits, minlength=layers).astype(np.float64))
    first, second = (replace(part, host=part.host + own) for part, own in zip(passes, waited, strict=True))
    return first, second
