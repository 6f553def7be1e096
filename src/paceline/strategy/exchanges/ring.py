"""Ring of partial sums, which every hop decodes, adds to and encodes (Li et al. 2018, Algorithm 1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import groupby
from typing import final

import numpy as np

from paceline.array_types import Ints
from paceline.strategy.compression.formats import Format
from paceline.strategy.exchanges.exchange import ChunkedExchange, OwnerLane
from paceline.strategy.exchanges.messages import ChunkTraffic, all_message_bytes, message_bytes, with_sizes
from paceline.strategy.exchanges.traffic import SIZE_BYTES, CodecWork, shard_sizes


@final
class Ring(ChunkedExchange):
    """Ring exchange. At hop s rank r sends block r - s + 1, a sum of s contributions. The rank ends with block r + 1 and
    forwards all blocks except r + 2.
    """

    __slots__ = ()
    name, position = "ring", 3
    reduces_to_owners = adds_on_host = adds_in_card = True
    most_workers = 1 << 12

    def chunk(self, count: int, fmt: Format, members: int, back: Format | None, servers: int) -> ChunkTraffic:
        """Return the two rounds of one chunk; see ``ChunkedExchange.chunk``."""
        del back, servers
        n = members
        blocks = np.array(shard_sizes(count, n, block=fmt.block), dtype=np.int64)
        lengths = _lengths(blocks, fmt)
        sent, ranks = np.zeros(n, np.int64), np.arange(n)
        for _, hops in groupby(range(1, n), key=fmt.pull_bits):  # blocks of equal width that a rank sends follow each other
            first, *others = hops
            sums = np.concatenate(([0], np.cumsum(np.tile(lengths(first), 2))))
            last_block = (ranks - first - len(others) + 1) % n
            sent += sums[last_block + 1 + len(others)] - sums[last_block]
        final_bytes = lengths(n)
        passed = final_bytes.sum() - np.roll(final_bytes, -2) if n > 1 else np.zeros(n, np.int64)
        filled = (blocks > 0).astype(np.int64)
        messages = [filled.sum() - np.roll(filled, by) if n > 1 else filled * 0 for by in (-1, -2)]
        lanes = [
            *with_sizes("reduce_scatter", "shift", sent, messages[0], fmt, n - 1),
            *with_sizes("all_gather", "shift", passed, messages[1], fmt, n - 1),
        ]
        block = int(blocks[0])
        return ChunkTraffic(lanes, CodecWork(encode=block * n, reduce=block * (n - 1), decode=block * n))

    def owner_chunk(self, count: int, fmt: Format, rows: int) -> list[OwnerLane]:
        """Return the first round of a chunk; see ``ChunkedExchange.owner_chunk``."""
        hops = Counter(fmt.pull_bits(hop) for hop in range(1, rows))  # sums of equal width have messages of equal length
        first = {fmt.pull_bits(hop): hop for hop in range(rows - 1, 0, -1)}
        sent = sum(times * message_bytes(count, fmt, first[width]) for width, times in hops.items())
        own: list[OwnerLane] = [(("reduce_scatter", "shift"), sent, rows - 1)]
        sizes: OwnerLane = (("sizes", "shift"), SIZE_BYTES * (rows - 1), rows - 1)
        return [sizes, *own] if fmt.tells_sizes else own


RING = Ring()


def _lengths(blocks: Ints, fmt: Format) -> Callable[[int], Ints]:
    """Return a function from k to the message bytes of each block as a sum of k contributions. Each width is computed once."""
    known: dict[float, Ints] = {}

    def lengths(k: int) -> Ints:
        width = fmt.pull_bits(k)
        if width not in known:
            known[width] = np.array(all_message_bytes(blocks.tolist(), fmt, k), dtype=np.int64)
        return known[width]

    return lengths
