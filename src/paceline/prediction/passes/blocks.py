"""Blocks of a network, and their number in each part of a pipeline."""

from __future__ import annotations

import re

import numpy as np

from paceline.errors import UserError
from paceline.strategy.sharding import block
from paceline.workload.prepared import once
from paceline.workload.table import Workload

_FURTHER = re.compile(r"further\d+")
EVEN = (0, 0)
"""Default blocks of the first and of the last stage: as many as the others."""


@once
def block_begins(workload: Workload) -> dict[str, int]:
    """Return the first layer of each block, by the block's name, in the order of the network.

    Empty if the blocks hold less than half of the FLOPs and of the kernels: stages of them would have hardly any work
    (Tacotron 2 works in the loop between its convolutions).
    """
    begins: dict[str, int] = {}
    within, outside = np.zeros(2), np.zeros(2)
    for index, layer in enumerate(workload.layers):
        name = block(f"{layer.name}.")
        work = within if name else outside
        for operation in layer.operations:
            work += operation.calls * operation.flops, operation.calls
        if name:
            begins.setdefault(name, index)
    return begins if (within >= outside).any() else {}


def most_parts(blocks: int) -> int:
    """Return the largest number of parts of a pipeline: each has a block, the embedding or the logits."""
    return blocks + 2 if blocks > 1 else 1


@once
def after_blocks(workload: Workload) -> int:
    """Return how many blocks the layers after the last one count for: each module for a further token, and the logits.

    0 without such modules: then the logits only take no share of a remainder.
    """
    modules = {name for layer in workload.layers if _FURTHER.fullmatch(name := layer.name.partition(".")[0])}
    return len(modules) + 1 if modules else 0


def part_sizes(blocks: int, count: int, virtual: int = 1, ends: tuple[int, int] = EVEN, after: int = 0) -> list[int]:
    """Return the blocks of each part of ``count`` stages.

    The remainder goes to the middle, since the ends also have the embedding and the logits. These count as a block each
    (Megatron-Core, ``account_for_embedding_in_pipeline_split`` and ``account_for_loss_in_pipeline_split``), so up to two more
    parts than blocks are possible: the last part has the logits alone, then the first the embedding alone.

    Args and errors as ``stages``; ``after``: number of blocks by which an even last part is smaller (``after_blocks``), as in
    NVIDIA's layouts of DeepSeek-V3: ``Et*4|(tttt|)*14tmL``.
    """
    parts, sizes = count * virtual, dict[int, int]()
    for name, stage, given in (("first", 0, ends[0]), ("last", count - 1, ends[1])):
        if given % virtual:
            raise UserError(
                f"{given} layers of the {name} stage do not divide among its {virtual} parts", f"give a multiple of {virtual}"
            )
        if given:
            sizes |= dict.fromkeys(range(stage, parts, count), given // virtual)
    rest, others = blocks - sum(sizes.values()), [part for part in range(parts) if part not in sizes]
    if (rest < len(others) and not (ends == EVEN and parts <= most_parts(blocks))) or (rest and not others):
        raise UserError(
            f"stages with {' and '.join(str(n) for n in ends if n)} layers at their ends leave {rest} of {blocks} blocks for "
            f"{len(others)} parts",
            "give the ends other numbers of layers",
        )
    order = sorted(others, key=lambda part: abs(2 * part - parts + 1))
    if ends != EVEN or (rest + after) // parts <= after:
        after = 0
    each, more = divmod(rest + after, len(others)) if others else (0, 0)
    even = [sizes.get(part, each + (part in order[:more])) for part in range(parts)]
    return [*even[:-1], even[-1] - after]
