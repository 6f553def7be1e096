"""Signed integers with a scale for each block and stochastic rounding, as in QSGD (Alistarh et al. 2017, section 3.1).

A block of largest magnitude m is sent as m and codes from -L to L (127 or 7). With r = fp32(2**24 L) / m, the code of x is

    q = sign(x) * ((min(trunc(|x| * r), 2**24 L) + u) >> 24),      u uniform on 0 to 2**24 - 1

The integer in front of u is L |x| / m in steps of 2**-24, and floor((i + u) / 2**24) is i / 2**24 on average, exactly. So the
rounding has no bias beyond 2**-24 of a code and the two fp32 roundings of r and of the product.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from paceline.array_types import F32, Bytes
from paceline.codecs import counter
from paceline.codecs.container import PayloadError
from paceline.codecs.reference.blocks import Blocked, lifts, peaks, tiles

Codes = NDArray[np.int8]


@dataclass(frozen=True, kw_only=True)
class Integer(Blocked):
    """Base class of ``int8`` and ``int4``, without the packing of the codes."""

    levels: ClassVar[int]

    @abstractmethod
    def pack(self, codes: Codes, out: Bytes) -> None:
        """Write the codes."""

    @abstractmethod
    def unpack(self, packed: Bytes, count: int) -> Codes:
        """Read ``count`` codes. Raises PayloadError for codes that ``pack`` does not write."""

    def encode_body(self, x: F32, body: Bytes, key: counter.Key, start: int) -> int:
        """Write the largest magnitudes, then the codes. Raises ValueError for NaN and infinity."""
        scales, packed = self.split(body, x.size)
        codes = np.empty(x.size, np.int8)
        for tile in tiles(x, self.block):
            peak = peaks(tile.values)
            scales[tile.blocks] = peak
            draws = counter.uniform24(key, start + tile.elements.start, tile.values.size)
            codes[tile.elements] = quantize(tile.values, peak, self.levels, draws.reshape(tile.values.shape)).reshape(-1)
        self.pack(codes, packed)
        return body.size

    def decode_body(self, body: Bytes, count: int) -> F32:
        """Decode as ``code * fp32(1 / L) * m``, from left to right. L * fp32(1 / L) is exactly 1, so the largest magnitude is
        exact."""
        scales, packed = self.split(body, count)
        peak = self.checked_scales(scales)
        out = self.unpack(packed, count) * (np.float32(1) / np.float32(self.levels))
        for tile in tiles(out, self.block):
            tile.values[:] *= peak[tile.blocks, None]
        return out


def quantize(values: F32, peak: F32, levels: int, draws: NDArray[np.uint32]) -> Codes:
    """Return the codes of rows with largest magnitudes ``peak``."""
    top = np.float32(levels * 2.0**24)
    lift = lifts(peak)
    lifted = peak * lift
    rate = np.divide(top, lifted, out=np.zeros_like(peak), where=peak > 0)
    # The largest magnitude must be code L whatever the draw: where its product rounds to less, the next larger rate is taken.
    rate = np.where((peak > 0) & (lifted * rate < top), (rate.view(np.uint32) + np.uint32(1)).view(np.float32), rate)
    scaled = np.abs(values) * lift[:, None] * rate[:, None]
    np.minimum(scaled, top, out=scaled)
    codes: Codes = (scaled.astype(np.uint32) + draws >> 24).astype(np.int8)
    np.negative(codes, out=codes, where=np.signbit(values))
    return codes


@dataclass(frozen=True, kw_only=True)
class Int8(Integer):
    """Eight bits per element: codes -127 to 127 in two's complement."""

    name: ClassVar[str] = "int8"
    code: ClassVar[int] = 7
    levels: ClassVar[int] = 127

    def code_bytes(self, count: int) -> int:
        """Return the bytes of the codes: one per element."""
        return count

    def pack(self, codes: Codes, out: Bytes) -> None:
        """Write the codes as bytes."""
        out[:] = codes.view(np.uint8)

    def unpack(self, packed: Bytes, count: int) -> Codes:
        """Read the codes. Raises PayloadError for -128."""
        codes = packed.view(np.int8)
        if codes.min(initial=0) < -127:
            raise PayloadError("the code -128: no encoder writes it")
        return codes


@dataclass(frozen=True, kw_only=True)
class Int4(Integer):
    """Four bits per element: codes -7 to 7 in two's complement, even indices in the lower half of a byte."""

    name: ClassVar[str] = "int4"
    code: ClassVar[int] = 8
    levels: ClassVar[int] = 7

    def code_bytes(self, count: int) -> int:
        """Return the bytes of the codes: one per two elements."""
        return -(-count // 2)

    def pack(self, codes: Codes, out: Bytes) -> None:
        """Pack two codes per byte. For an odd count, the upper half of the last byte is zero."""
        nibbles = codes.view(np.uint8) & 15
        out[:] = nibbles[::2]
        out[: codes.size // 2] |= nibbles[1::2] << 4

    def unpack(self, packed: Bytes, count: int) -> Codes:
        """Read the codes. Raises PayloadError for -8, or if an unused half byte is not zero."""
        if count % 2 and packed[-1] >> 4:
            raise PayloadError("the padding behind the last code is not zero")
        codes = np.empty(count, np.int8)
        signed = packed.view(np.int8)
        codes[::2] = signed << 4 >> 4
        codes[1::2] = (signed >> 4)[: count // 2]
        if codes.min(initial=0) < -7:
            raise PayloadError("the code -8: no encoder writes it")
        return codes
