"""Messages of one chunk, with their bytes and the collectives that carry them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from paceline.array_types import Ints
from paceline.strategy.compression.formats import FP32, Format
from paceline.strategy.exchanges.traffic import SIZE_BYTES, CodecWork
from paceline.strategy.phase import Pattern, Phase

_NONE: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class MessageLane:
    """One kind of collective among the members of a group.

    Attributes:
        sizes, plain, back: bytes of each member, as in a ``Phase``.
    """

    name: str
    pattern: Pattern
    sizes: Ints
    rounds: int
    plain: Ints = field(default_factory=lambda: _NONE)
    back: Ints = field(default_factory=lambda: _NONE)

    @property
    def key(self) -> tuple[str, Pattern]:
        """Name and pattern of the lane. Lanes with the same key are added."""
        return self.name, self.pattern

    def plus(self, other: MessageLane, times: int = 1) -> MessageLane:
        """Return the sum of this lane and ``times`` the other."""
        return MessageLane(
            self.name,
            self.pattern,
            self.sizes + times * other.sizes,
            self.rounds + times * other.rounds,
            self.plain + times * other.plain,
            self.back + times * other.back,
        )

    def phase(self, world_size: int, members: int, stride: int) -> Phase:
        """Return the lane of all ranks as a phase."""
        sizes, plain, back = (tuple(of.tolist()) for of in (self.sizes, self.plain, self.back))
        return Phase(self.name, sizes, world_size, self.pattern, members, stride, self.rounds, plain, back)


class ChunkTraffic(NamedTuple):
    """Traffic of one chunk: collectives, codec work, and work on sums that return as fp32."""

    lanes: list[MessageLane]
    passes: CodecWork
    fp32: CodecWork = CodecWork()


@dataclass(frozen=True, slots=True)
class StreamTraffic:
    """Traffic of all chunks of a stream among the members of a group. Fields as in ``ChunkTraffic``."""

    lanes: tuple[MessageLane, ...]
    passes: CodecWork
    fp32: CodecWork
    chunks: int

    @classmethod
    def of_chunk(cls, count: int, chunk: ChunkTraffic) -> StreamTraffic:
        """Return the traffic of a stream of one chunk of ``count`` elements."""
        lanes = chunk.lanes if count else [replace(lane, rounds=0) for lane in chunk.lanes]
        return cls(tuple(lanes), chunk.passes, chunk.fp32, int(count > 0))

    def plus(self, other: StreamTraffic, times: int) -> StreamTraffic:
        """Return the sum of this traffic and ``times`` the other, which has the same lanes."""
        lanes = tuple(a.plus(b, times) for a, b in zip(self.lanes, other.lanes, strict=True))
        passes, fp32 = self.passes.plus(other.passes, times), self.fp32.plus(other.fp32, times)
        return StreamTraffic(lanes, passes, fp32, self.chunks + times)


def with_sizes(
    name: str, pattern: Pattern, sizes: Iterable[int], messages: Iterable[int], fmt: Format, rounds: int
) -> list[MessageLane]:
    """Return a collective, preceded by the lengths of its messages if the format needs them.

    Args:
        sizes: bytes of each member.
        messages: number of messages of each member.
    """
    payload = [MessageLane(name, pattern, np.asarray(list(sizes), dtype=np.int64), rounds)]
    if not fmt.tells_sizes:
        return payload
    message_sizes = SIZE_BYTES * np.asarray(list(messages), dtype=np.int64)
    return [MessageLane("sizes", pattern, message_sizes, rounds), *payload]


def message_bytes(size: int, fmt: Format, contributions: int = 1) -> int:
    """Return the bytes of one message of ``size`` elements.

    Formats without exact sums fall back to fp32 if that is shorter, as for a single element. Formats of data-dependent length
    do not: their lengths are estimates.
    """
    own = fmt.message_bytes(size, contributions)
    return own if fmt.grows or fmt.tells_sizes else min(own, FP32.message_bytes(size))


def all_message_bytes(sizes: Iterable[int], fmt: Format, contributions: int = 1) -> list[int]:
    """Return the message bytes of each size. Equal sizes are computed once."""
    known: dict[int, int] = {}
    lengths = []
    for size in sizes:
        if size not in known:
            known[size] = message_bytes(size, fmt, contributions)
        lengths.append(known[size])
    return lengths
