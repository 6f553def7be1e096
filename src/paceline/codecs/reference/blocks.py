"""Common parts of codecs with one fp32 scale per block of elements: ``int8``, ``int4`` and ``sign``.

A body is all scales, then all codes. Every block is coded from its own elements alone, with maxima and integer sums, which do
not depend on an order: so a vector unit, several threads and a GPU write the same bytes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from paceline.array_types import F32, Bytes
from paceline.codecs.codec import NON_FINITE, Codec, legal
from paceline.codecs.container import PayloadError

LOG2_LEAST, LOG2_MOST = 6, 16
_MAGNITUDE, _INFINITY = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
_SMALL, _LIFT = np.float32(2.0**-64), np.float32(2.0**64)
_TILE = 1 << 16  # elements worked on at once: their scratch stays in the second-level cache


class Tile(NamedTuple):
    """Blocks of equal length, given by ``blocks`` and ``elements``. ``blocks`` and ``elements`` say which."""

    blocks: slice
    elements: slice
    values: F32  # (blocks, elements of a block)


def tiles(x: F32, block: int) -> Iterator[Tile]:
    """Yield the blocks of ``x`` in tiles of whole blocks, then a shorter last block separately, if any."""
    whole = x.size - x.size % block
    for first in range(0, whole, _TILE):
        last = min(first + _TILE, whole)
        yield Tile(slice(first // block, last // block), slice(first, last), x[first:last].reshape(-1, block))
    if whole < x.size:
        yield Tile(slice(whole // block, whole // block + 1), slice(whole, x.size), x[whole:].reshape(1, -1))


def peaks(values: F32) -> F32:
    """Return max |x| of each row. Raises ValueError when there is a NaN or an infinity."""
    top: NDArray[np.uint32] = (values.view(np.uint32) & _MAGNITUDE).max(axis=1)
    if (top >= _INFINITY).any():
        raise ValueError(NON_FINITE)
    return top.view(np.float32)


def lifts(peak: F32) -> F32:
    """Return the power of two that each block is multiplied by first, so that later values are not denormal."""
    return np.where(peak < _SMALL, _LIFT, np.float32(1))


@dataclass(frozen=True, kw_only=True)
class Blocked(Codec):
    """A codec with a scale for each block.

    Args:
        block: elements that share a scale, a power of two from 64 to 65,536.
    """

    block: int = 1024

    def __post_init__(self) -> None:
        possible = int(self.block).bit_count() == 1 and 1 << LOG2_LEAST <= self.block <= 1 << LOG2_MOST
        legal(possible, f"a block of {self.block} elements", "give a power of two from 64 to 65536")

    @property
    def log2_block(self) -> int:
        """log2 of the block."""
        return int(self.block).bit_length() - 1

    @property
    def alignment(self) -> int:
        """A block; see ``Codec``."""
        return self.block

    def parameters(self) -> bytes:
        """The block size as its log2."""
        return bytes([self.log2_block])

    @classmethod
    def of(cls, parameters: bytes) -> Self:
        """Return the codec of a header. Raises PayloadError for a block that no encoder uses."""
        if not LOG2_LEAST <= parameters[0] <= LOG2_MOST or any(parameters[1:]):
            raise PayloadError(f"{cls.name} has no parameters {parameters.hex()}")
        return cls(block=1 << parameters[0])

    @abstractmethod
    def code_bytes(self, count: int) -> int:
        """Return the bytes of a body: four per block for the scales, plus the codes."""

    def scale_bytes(self, count: int) -> int:
        """Bytes of the scales in front of the codes."""
        return 4 * -(-count // self.block)

    def body_range(self, count: int) -> tuple[int, int]:
        """Four bytes a block, and the codes."""
        return (self.scale_bytes(count) + self.code_bytes(count),) * 2

    def split(self, body: Bytes, count: int) -> tuple[F32, Bytes]:
        """Return the scales and the codes of a body, as views."""
        at = self.scale_bytes(count)
        return body[:at].view("<f4"), body[at:]

    def checked_scales(self, scales: F32) -> F32:
        """Return the scales of a body. Raises PayloadError for a negative (also -0), infinite or NaN scale."""
        if (scales.view(np.uint32) >= _INFINITY).any():
            raise PayloadError("a block's scale is negative or no finite number")
        return scales
