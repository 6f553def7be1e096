"""Eight-bit floats (e4m3) with a power of two for each block, rounded by chance (Micikevicius et al. 2022, arXiv 2209.05433).

A block of largest magnitude m is sent as the smallest power of two s with m <= 448 s, and the numbers x / s as e4m3: a sign,
four bits of exponent, three of mantissa, no infinity, 448 as the largest. A power of two, as the scales of OCP's microscaling
formats (Rouhani et al. 2023, arXiv 2310.10537), makes the division exact, so that a decoded block encodes to itself. An fp32
scale as DeepSeek-V3's (arXiv 2412.19437, section 3.3.2) would gain nothing: floats are as precise in the lower half of their
range.

Rounding takes the next larger code with the chance of what is cut off, so that the expected value is x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from paceline.array_types import F32, Bytes
from paceline.codecs import counter
from paceline.codecs.container import PayloadError
from paceline.codecs.reference.blocks import Blocked, peaks, tiles

_CUT = 20  # bits of an fp32 mantissa beyond e4m3's three
_REBIAS = np.uint32(120 << 3)  # from fp32's exponent field to e4m3's, above three bits of mantissa
_NORMAL = np.float32(2.0**-6)  # smallest normal number; below, codes are multiples of 2**-9
_LARGEST_FIELD = 247  # exponent field of the largest scale, 2**120
_NAN = 0x7F


@dataclass(frozen=True, kw_only=True)
class Fp8(Blocked):
    """Codec of eight bits per element, e4m3 with a scale for each block; unbiased."""

    name: ClassVar[str] = "fp8"
    code: ClassVar[int] = 11

    def code_bytes(self, count: int) -> int:
        """Return the bytes of the codes: one per element."""
        return count

    def encode_body(self, x: F32, body: Bytes, key: counter.Key, start: int) -> int:
        """Write the scales, then the codes. Raises ValueError for NaN and infinity."""
        scales, codes = self.split(body, x.size)
        for tile in tiles(x, self.block):
            fields = _fields(peaks(tile.values))
            scales[tile.blocks] = _power(fields)
            draws = counter.uniform24(key, start + tile.elements.start, tile.values.size) >> np.uint32(24 - _CUT)
            scaled = np.abs(tile.values) * _power(254 - fields)[:, None]
            # 2**120 takes no more than 240: the next code would decode to infinity.
            np.minimum(scaled, np.where(fields == _LARGEST_FIELD, 240, 448).astype(np.float32)[:, None], out=scaled)
            rounded = _rounded(scaled.reshape(-1), draws)
            codes[tile.elements] = rounded | np.signbit(tile.values).reshape(-1).astype(np.uint8) << 7
        return body.size

    def decode_body(self, body: Bytes, count: int) -> F32:
        """Decode as code times scale, which is exact."""
        scales, codes = self.split(body, count)
        words = self.checked_scales(scales).view(np.uint32)
        if ((words & 0x7FFFFF) != 0).any() or (words > _LARGEST_FIELD << 23).any() or (words == 0).any():
            raise PayloadError("a block's scale is no power of two up to 2**120")
        if ((codes & 0x7F) == _NAN).any():
            raise PayloadError("the code of NaN: no encoder writes it")
        out: F32 = VALUES[codes]
        for tile in tiles(out, self.block):
            with np.errstate(over="ignore"):
                tile.values[:] *= scales[tile.blocks, None]
        if not np.isfinite(out).all():
            raise PayloadError("a value beyond the largest fp32 number")
        return out


def _fields(peak: F32) -> NDArray[np.int32]:
    """Return the exponent fields of the scales of blocks with these largest magnitudes; that of 2**-126 at least."""
    bits = peak.view(np.uint32)
    fields = (bits >> 23).astype(np.int32) - 8 + ((bits & 0x7FFFFF) > 0x600000)  # 448 is 1.75 * 2**8
    return np.maximum(fields, 1)


def _power(fields: NDArray[np.int32]) -> F32:
    return (fields.astype(np.uint32) << 23).view(np.float32)


def _rounded(magnitudes: F32, draws: NDArray[np.uint32]) -> Bytes:
    """Return the codes of magnitudes up to 448. ``draws`` are below 2**20."""
    normal = (magnitudes.view(np.uint32) + draws >> _CUT) - _REBIAS
    small = np.minimum(magnitudes, _NORMAL) * np.float32(2.0 ** (9 + _CUT))
    subnormal = small.astype(np.uint32) + draws >> _CUT
    codes: Bytes = np.where(magnitudes < _NORMAL, subnormal, normal).astype(np.uint8)
    return codes


def _values() -> F32:
    """Return the value of each code."""
    codes = np.arange(256)
    field, mantissa = codes >> 3 & 15, codes & 7
    magnitude = np.where(field == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (field - 10.0))
    values: F32 = np.where(codes & _NAN == _NAN, np.nan, np.copysign(magnitude, 127.5 - codes)).astype(np.float32)
    return values


VALUES = _values()
"""Value of each e4m3 code, before its scale."""
