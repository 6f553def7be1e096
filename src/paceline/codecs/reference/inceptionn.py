"""INCEPTIONN's codec, to the bit (Li et al., MICRO 2018, algorithms 2 and 3, section VI-A; doi 10.1109/MICRO.2018.00023).

The exponent decides how a value is sent: not at all, as sign and 7 or 15 bits of a fixed-point magnitude (truncated), or as
fp32. The bound is absolute, without a scale: smaller gradients are lost. docs/wire-format.md states the decisions for cases
that paper and hardware leave open or contradict. ``inceptionn-scaled`` is the variant that keeps its bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, inf, log2
from typing import ClassVar, NamedTuple, Self

import numpy as np

from paceline.array_types import F32, Bytes
from paceline.codecs import counter
from paceline.codecs.codec import Codec, legal
from paceline.codecs.container import PayloadError
from paceline.codecs.reference import bursts

_BIAS = 127


@dataclass(frozen=True, kw_only=True)
class PowerBound(Codec):
    """A codec whose only parameter is an error bound 2**-k; k is its first parameter byte."""

    bound: float
    largest_k: ClassVar[int]

    def __post_init__(self) -> None:
        k = _nearest_k(self.bound, self.largest_k)
        fix = f"give a power of two; the nearest legal one is 2**-{k} = {2.0**-k}"
        legal(self.bound == 2.0**-k, f"a bound of {self.bound}", fix)

    @property
    def k(self) -> int:
        """Exponent of the bound 2**-k."""
        return round(-log2(self.bound))

    def parameters(self) -> bytes:
        """The parameter k."""
        return bytes([self.k])

    @classmethod
    def of(cls, parameters: bytes) -> Self:
        """Return the codec of a header. Raises PayloadError for a bound out of range."""
        k, *rest = parameters
        if not 1 <= k <= cls.largest_k or any(rest):
            raise PayloadError(f"{cls.name}: impossible parameters {parameters.hex()}")
        return cls(bound=2.0**-k)


@dataclass(frozen=True, kw_only=True)
class Inceptionn(PowerBound):
    """INCEPTIONN as published, with 2, 10, 18 or 34 bits a value.

    Args:
        bound: 2**-1 to 2**-15 (the paper uses 2**-10, 2**-8, 2**-6); magnitudes below it are sent as zero. It is the error's
            bound only from 2**-7 up: a one-byte magnitude has steps of 2**-7, so below that the error reaches almost 2**-7.

    NaN and infinity pass unchanged, as does everything from 1 up.
    """

    name: ClassVar[str] = "inceptionn"
    code: ClassVar[int] = 5
    largest_k: ClassVar[int] = 15

    bound: float = 2.0**-10

    def body_range(self, count: int) -> tuple[int, int]:
        """Return the range of a body's bytes: from two bits per value (all below the bound) to 34 (all at least 1), plus the
        directory."""
        return bursts.body_range(count, 4)

    def thresholds(self) -> tuple[int, int, int]:
        """Return the fp32 bits from which a magnitude takes 1, 2 and 4 bytes: exponents EB, EB + ceil((127 - EB) / 2) and 127
        of algorithm 2."""
        smallest = _BIAS - self.k
        return smallest << 23, smallest + (self.k + 1) // 2 << 23, _BIAS << 23

    def tags(self, x: F32) -> Bytes:
        """Return each value's tag, which is the number of thresholds that its magnitude reaches."""
        magnitude = x.view(np.uint32) & ~bursts.SIGN
        total = np.zeros(x.size, np.uint8)
        for threshold in self.thresholds():
            total += magnitude >= np.uint32(threshold)
        return total

    def encode_body(self, x: F32, body: Bytes, key: counter.Key, start: int) -> int:
        """Encode by algorithm 2, which is deterministic and accepts every value."""
        parts = []
        for first in range(0, x.size, bursts.CHUNK):
            part = x[first : first + bursts.CHUNK]
            tags = self.tags(part)
            # floor(|f| * 2**31): its upper 7 and 15 bits below the sign are the paper's S[22:16] and S[22:8].
            exact = np.where(tags == bursts.WORD, np.float32(0), np.abs(part))
            fixed = (exact * np.float32(2.0**31)).astype(np.uint32)
            bits = part.view(np.uint32)
            parts.append(bursts.pack(tags, np.where(tags == bursts.WORD, bits, fixed | bits & bursts.SIGN)))
        return bursts.write(body, bursts.ENTRY_BYTES * bursts.count_chunks(x.size), parts)

    def decode_body(self, body: Bytes, count: int) -> F32:
        """Decode by algorithm 3. A magnitude of zero keeps its sign."""
        out = np.empty(count, np.float32)
        for index, part in enumerate(bursts.read(body, bursts.ENTRY_BYTES * bursts.count_chunks(count), count)):
            values = out[index * bursts.CHUNK : (index + 1) * bursts.CHUNK]
            tags, lanes = bursts.unpack(part, values.size)
            fixed = (lanes & ~bursts.SIGN).astype(np.float32) * np.float32(2.0**-31)
            signed = fixed.view(np.uint32) | lanes & bursts.SIGN
            values.view(np.uint32)[:] = np.where(tags == bursts.WORD, lanes, signed)
            lost = (tags == bursts.BYTE) & (fixed == 0) & (self.k > 7)  # cut below the step of the one-byte magnitude
            if (self.tags(values) != np.where(lost, bursts.ZERO, tags)).any():
                raise PayloadError("a value under a tag that no encoder gives it")
        return out


class TagShares(NamedTuple):
    """Shares of values that take 2, 10, 18 and 34 bits, as fractions of 1 (the paper's table III)."""

    bits2: float
    bits10: float
    bits18: float
    bits34: float

    @property
    def ratio(self) -> float:
        """Compression ratio: fp32 bits / sent bits, from 32/34 to 16."""
        return 32 / (2 * self.bits2 + 10 * self.bits10 + 18 * self.bits18 + 34 * self.bits34)


def tag_shares(x: F32, bound: float = 2.0**-10) -> TagShares:
    """Return the shares of the values of ``x`` (1-D fp32, not empty) by the bits that ``inceptionn`` uses for them."""
    counts = np.bincount(Inceptionn(bound=bound).tags(np.ascontiguousarray(x, np.float32)), minlength=4)
    return TagShares(*(counts / x.size).tolist())


def _nearest_k(bound: float, largest: int) -> int:
    """Return the k of the legal bound 2**-k with the nearest ratio."""
    if not 0 < bound < inf:
        return largest if bound <= 0 else 1
    return min(max(floor(0.5 - log2(bound)), 1), largest)
