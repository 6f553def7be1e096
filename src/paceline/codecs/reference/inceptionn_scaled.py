"""INCEPTIONN's bursts with a power-of-two scale per block, so that the error bound is relative.

The published codec (``inceptionn``) compares values with 1 and truncates. This one compares with the smallest power of two
above the block's largest magnitude, and rounds to nearest. Burst layout and payload sizes are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from paceline.array_types import F32, Bytes
from paceline.codecs import counter
from paceline.codecs.codec import NON_FINITE
from paceline.codecs.container import PayloadError
from paceline.codecs.reference import bursts
from paceline.codecs.reference.inceptionn import PowerBound

BLOCK = 1024
_EMPTY = -(1 << 15)  # the exponent of a block of zeros, whose bursts are not sent
_LEAST, _MOST = -148, 128  # exponents of the powers of two above the least and the largest fp32 magnitude
_EXPONENT_BYTES = 2
_BYTE_MOST, _HALF_MOST = 127, 32767
_FLOAT_MOST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class InceptionnScaled(PowerBound):
    """Codec with an error of at most ``bound`` times the largest magnitude of each block of 1,024 values.

    Args:
        bound: 2**-1 to 2**-14. A value takes 2 bits if it rounds to zero and 10 otherwise, up to 2**-6; with smaller bounds
            the larger ones take 18.

    Has no form for NaN and infinity.
    """

    name: ClassVar[str] = "inceptionn-scaled"
    code: ClassVar[int] = 6
    largest_k: ClassVar[int] = 14

    bound: float = 2.0**-6

    @property
    def alignment(self) -> int:
        """A block; see ``Codec``."""
        return BLOCK

    def body_range(self, count: int) -> tuple[int, int]:
        """Return the range of a body's bytes: from exponents alone (all values zero) to 18 bits a value, or 10 for bounds from
        2**-6."""
        least = _bursts_at(count)
        most = bursts.body_range(count, 1 if self.k < 7 else 2)[1]
        return least, least - bursts.ENTRY_BYTES * bursts.count_chunks(count) + most

    def encode_body(self, x: F32, body: Bytes, key: counter.Key, start: int) -> int:
        """Round every value to a multiple of its payload's unit. Raises ValueError for NaN and infinity."""
        if not np.isfinite(x).all():
            raise ValueError(NON_FINITE)
        edges = np.arange(0, x.size, BLOCK)
        peaks = np.maximum.reduceat(np.abs(x), edges) if x.size else x
        exponents = np.where(peaks == 0, _EMPTY, np.frexp(peaks)[1]).astype("<i2")
        at = bursts.ENTRY_BYTES * bursts.count_chunks(x.size)
        body[at : at + exponents.nbytes] = exponents.view(np.uint8)
        parts = [bursts.pack(*self._quantised(*part)) for part in _by_chunk(x, exponents)]
        return bursts.write(body, _bursts_at(x.size), parts)

    def _quantised(self, x: F32, exponents: NDArray[np.int16]) -> tuple[Bytes, bursts.Words]:
        """Return tags and lanes of the nonempty blocks of one chunk; the arithmetic is exact in fp64."""
        unit = np.exp2(self.k - exponents.astype(np.float64))
        magnitude = np.abs(x).astype(np.float64) * unit
        small = np.rint(magnitude).astype(np.uint32)
        large = np.minimum(np.rint(magnitude * 2.0 ** (15 - self.k)).astype(np.uint32), _HALF_MOST)
        tags = (small > 0).astype(np.uint8) + (small > _BYTE_MOST)
        lanes = np.where(tags == bursts.HALF, large << 16, small << 24)
        lanes |= np.where(tags == bursts.ZERO, np.uint32(0), x.view(np.uint32) & bursts.SIGN)
        return tags, lanes

    def decode_body(self, body: Bytes, count: int) -> F32:
        """Decode magnitude times unit, limited to the largest fp32 number."""
        out = np.zeros(count, np.float32)
        at = bursts.ENTRY_BYTES * bursts.count_chunks(count)
        exponents = np.frombuffer(body[at : _bursts_at(count)].tobytes(), "<i2")
        if ((exponents != _EMPTY) & ((exponents < _LEAST) | (exponents > _MOST))).any():
            raise PayloadError("a block's exponent that no fp32 number has")
        parts = bursts.read(body, _bursts_at(count), count)
        for index, part in enumerate(parts):
            values = out[index * bursts.CHUNK : (index + 1) * bursts.CHUNK]
            own = exponents[index * (bursts.CHUNK // BLOCK) :][: bursts.CHUNK // BLOCK]
            sent = np.repeat(own, BLOCK)[: values.size]
            values[sent != _EMPTY] = self._values(part, sent[sent != _EMPTY])
            peaks = np.maximum.reduceat(np.abs(values), np.arange(0, values.size, BLOCK))
            if (peaks < np.where(own == _EMPTY, 0, np.exp2(own - 1.0))).any():
                raise PayloadError("a block whose values do not reach half its scale")
        return out

    def _values(self, part: Bytes, exponents: NDArray[np.int16]) -> F32:
        """Decode the bursts of one chunk."""
        tags, lanes = bursts.unpack(part, exponents.size)
        magnitude = (lanes & ~bursts.SIGN) >> np.where(tags == bursts.HALF, 16, 24).astype(np.uint32)
        least = np.array([0, 1, 255 << (14 - self.k), 1 << 31])[tags]
        most = np.array([0, min(_BYTE_MOST, 1 << self.k), _HALF_MOST, 0])[tags]
        if ((magnitude < least) | (magnitude > most)).any():
            raise PayloadError("a magnitude under a tag that no encoder gives it")
        exact = magnitude * np.exp2(exponents - np.where(tags == bursts.HALF, 15.0, self.k))
        rounded = np.minimum(exact, _FLOAT_MOST).astype(np.float32)
        values: F32 = (rounded.view(np.uint32) | lanes & bursts.SIGN).view(np.float32)
        return values


def _bursts_at(count: int) -> int:
    """Return the start of the bursts, which follow the directory and the blocks' exponents."""
    return bursts.ENTRY_BYTES * bursts.count_chunks(count) + _EXPONENT_BYTES * -(-count // BLOCK)


def _by_chunk(x: F32, exponents: NDArray[np.int16]) -> list[tuple[F32, NDArray[np.int16]]]:
    """Return, for each chunk, the values of its nonempty blocks and their exponents."""
    parts = []
    for first in range(0, x.size, bursts.CHUNK):
        values = x[first : first + bursts.CHUNK]
        own = np.repeat(exponents[first // BLOCK :][: bursts.CHUNK // BLOCK], BLOCK)[: values.size]
        parts.append((values[own != _EMPTY], own[own != _EMPTY]))
    return parts
