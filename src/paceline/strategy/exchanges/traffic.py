"""Traffic of one group of gradients: collectives in order, codec work, and shards of the elements."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from paceline.strategy.phase import Phase

CHUNK_ELEMENTS = 1 << 21  # 8 MiB of fp32: large against the overhead of a call of codec and engine, a third of DDP's bucket
SHARD_ALIGN = 64  # elements: shards start at whole blocks of the ternary format
SIZE_BYTES = 8  # before a message whose length depends on the values
FLAGS = 1  # fp32 flag sent with the scales: a gradient is NaN or infinite


@dataclass(frozen=True, slots=True)
class CodecWork:
    """Numbers of fp32 elements that the busiest rank's codec encodes, decodes and adds, or decodes."""

    encode: int = 0
    reduce: int = 0
    decode: int = 0

    def plus(self, other: CodecWork, times: int = 1) -> CodecWork:
        """Return the sum of this work and ``times`` the other."""
        return CodecWork(
            self.encode + times * other.encode, self.reduce + times * other.reduce, self.decode + times * other.decode
        )


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic of one group of gradients: collectives in order, and codec work.

    Attributes:
        before, after: collectives of the whole group, before and after its chunks.
        chunked: collectives of the chunks, all chunks together. Codec and network work on different chunks at once.
        compressed, dense: work of the compression's codec, and work on uncompressed numbers.
        inner: additions inside a node.
        chunks: number of chunks.
        largest: share of the elements in the largest chunk, which cannot overlap itself.
        copied: elements that a CPU copies: gradients into one buffer before it encodes, and back after it has added or decoded.
    """

    before: tuple[Phase, ...]
    chunked: tuple[Phase, ...]
    after: tuple[Phase, ...]
    compressed: CodecWork
    dense: CodecWork
    inner: CodecWork
    chunks: int
    largest: float
    copied: CodecWork = CodecWork()

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All collectives, in order."""
        return self.before + self.chunked + self.after


def shard_bounds(count: int, workers: int, owners: int = 0, block: int = 1) -> list[tuple[int, int]]:
    """Return ``(start, stop)`` of the elements that each worker owns, in whole blocks. The last may be short or empty.

    Args:
        owners: number of workers that own a shard, spread evenly: rank ``i workers // owners`` is owner i. 0: all.
        block: elements that are coded together. A shard is whole blocks, or a power of two within one.
    """
    owners = owners or workers
    chunk = _in_blocks(-(-count // owners), block)
    owned = [((rank + 1) * owners - 1) // workers + 1 for rank in range(-1, workers)]  # shards up to each rank
    return [(min(before * chunk, count), min(now * chunk, count)) for before, now in pairwise(owned)]


def _in_blocks(least: int, block: int) -> int:
    """Return the size of a shard of at least ``least`` elements; see ``shard_bounds``."""
    if block > SHARD_ALIGN and least < block:
        return max(SHARD_ALIGN, 1 << (least - 1).bit_length()) if least else 0
    return -(-least // max(block, SHARD_ALIGN)) * max(block, SHARD_ALIGN)


def shard_sizes(count: int, workers: int, owners: int = 0, block: int = 1) -> list[int]:
    """Return the number of elements that each worker owns; see ``shard_bounds``."""
    return [stop - start for start, stop in shard_bounds(count, workers, owners, block)]


def column_bounds(columns: int, rows: int, block: int = 1) -> list[tuple[int, int]]:
    """Return ``(start, stop)`` of the columns of each chunk of a matrix with a row for each owner.

    A chunk has at most ``CHUNK_ELEMENTS`` in all rows together, but at least one block a row, and whole blocks.
    """
    step = max(block, SHARD_ALIGN)
    size = max(1, CHUNK_ELEMENTS // (rows * step)) * step
    return [(start, min(start + size, columns)) for start in range(0, columns, size)]
