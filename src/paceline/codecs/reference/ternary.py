"""TernGrad's codec: stochastic ternary values, and the exact integer sum of several workers' (Wen et al. 2017).

    g~ = s * sign(g) o b,   P(b_k = 1) = |g_k| / s,   s = max |g|                                (equations 1 and 2)

The draw compares integers below 2**24 with ``|g| * (2**24 / s)`` in fp32: one correctly rounded division per tensor, one
correctly rounded product per element, no fused operation. Therefore every implementation makes the same choice.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from paceline.array_types import F32, Bools, Bytes
from paceline.codecs import counter
from paceline.codecs.codec import NON_FINITE, Codec, MessageScaling, legal
from paceline.codecs.container import PayloadError
from paceline.codecs.moments import Moments, Statistics, moments
from paceline.codecs.reference import bit_planes

TINY_SCALE = np.float32(2.0**-100)  # below it 2**24 / s overflows: such a tensor is sent as zeros

_LARGEST = float(np.finfo(np.float32).max)


def clip_bound(m: Moments, clip: float | None) -> np.float32:
    """Return the clipping bound of one tensor: ``min(max |x|, clip * sigma)``, equation 11 of TernGrad (c = 2.5), or max |x|
    without clip."""
    if clip is None or m.sigma == 0:  # a constant tensor has no outliers
        return m.peak
    bound: np.float32 = np.minimum(m.peak, np.float32(clip) * m.sigma)
    return bound


def ternarize(x: F32, bound: np.float32, scale: np.float32, stream: counter.Key, start: int) -> tuple[Bools, Bools]:
    """Return the two bit planes (nonzero, negative) of the ternary form of ``x`` clipped to ``+-bound``.

    Args:
        bound: own clipping bound; magnitudes beyond it count as it.
        scale: the scaler shared by all workers, at least ``bound``.
        stream, start: random stream and first draw: element k of ``x`` uses draw ``start + k``.
    """
    if scale < TINY_SCALE:
        none = np.zeros(x.size, np.bool_)
        return none, none
    magnitude = np.abs(x)
    np.minimum(magnitude, bound, out=magnitude)
    magnitude *= np.float32(2.0**24) / scale
    nonzero = counter.uniform24(stream, start, x.size).astype(np.float32) < magnitude
    return nonzero, nonzero & (x < 0)


@dataclass(frozen=True, kw_only=True)
class Ternary(Codec):
    """Two bits per element: -scale, 0 or +scale, unbiased.

    Args:
        clip: clip at this many standard deviations first (TernGrad uses 2.5); None does not clip.
        scale: the scaler; None means max |x| of the encoded values, after clipping. Larger magnitudes count as it.
    """

    name: ClassVar[str] = "ternary"
    code: ClassVar[int] = 3
    exact_sums: ClassVar[bool] = True
    agrees: ClassVar[bool] = True

    clip: float | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        for what, value in (("clip", self.clip), ("scale", self.scale)):
            legal(value is None or 0 <= value <= _LARGEST, f"{what} is {value}", "give a number of fp32 from 0 up, or None")

    def body_range(self, count: int) -> tuple[int, int]:
        """Return the bytes of a body: two bit planes."""
        return (bit_planes.packed_bytes(count, 2),) * 2

    def parameters(self) -> bytes:
        """The scaler."""
        return struct.pack("<f", self.scale)

    @classmethod
    def of(cls, parameters: bytes) -> Ternary:
        """Return the codec of a header. Raises PayloadError for a negative or non-numeric scaler."""
        return cls(scale=_scale(parameters))

    def resolved(self, x: F32, statistics: Statistics) -> Ternary:
        """Return this codec with the scaler and the clipping bound of ``x``."""
        if self.scale is not None and self.clip is None:
            return self
        m = Moments(np.float32(0), np.float32(statistics.peak(x))) if self.clip is None else moments(x, statistics)
        if not m.finite:
            raise ValueError(NON_FINITE)
        bound = float(clip_bound(m, self.clip))
        if self.scale is None:
            return replace(self, scale=bound, clip=None)
        return self if bound >= self.scale else _Bounded(scale=self.scale, bound=bound)

    @property
    def largest(self) -> np.float32:
        """Largest magnitude that is encoded; larger ones are clipped to it."""
        return np.float32(self.scale)

    def encode_body(self, x: F32, body: Bytes, key: counter.Key, start: int) -> int:
        """Encode by equations 1 and 2. Raises ValueError for NaN and infinity."""
        if not np.isfinite(x).all():
            raise ValueError(NON_FINITE)
        body[:] = bit_planes.pack_planes(ternarize(x, self.largest, np.float32(self.scale), key, start))
        return body.size

    def decode_body(self, body: Bytes, count: int) -> F32:
        """Decode as ``scale * code``."""
        nonzero, negative = bit_planes.unpack_planes(body, count, 2)
        codes: NDArray[np.int8] = nonzero.view(np.int8) - (negative.view(np.int8) << 1)
        if codes.min(initial=0) < -1:
            raise PayloadError("a negative zero: no encoder writes this code")
        return codes * np.float32(self.scale)

    def prepare(self, m: Moments) -> float:
        """Return the clipping bound. The workers share the largest as their scaler (section 3.2, "scaler sharing")."""
        return float(clip_bound(m, self.clip))

    def prepare_each(self, sigma: Any, peak: Any) -> Any:
        """Return ``clip_bound`` of several tensors; see ``Codec``."""
        if self.clip is None:
            return peak
        bound = peak.minimum(sigma * float(np.float32(self.clip)))
        return bound.where(sigma != 0, peak)

    def finish(self, own: float, agreed: float) -> MessageScaling:
        """Return how to encode the tensor: clipped at this worker's bound, divided by the shared scaler.

        The product with the reciprocal is one fp32 rounding; the codec's factor of 2**24 is exact, so its choice is that of
        ``ternarize`` with the shared scaler.
        """
        factor = 0.0 if agreed < TINY_SCALE else float(np.float32(1.0) / np.float32(agreed))
        return MessageScaling(own, factor, agreed)

    def summing(self, workers: int) -> Codec:
        """Return the codec of one worker's ternary values (two bits), or of the exact integer sum of several workers."""
        return Ternary(scale=1.0) if workers == 1 else TernarySum(workers=workers, scale=float(workers))


@dataclass(frozen=True, kw_only=True)
class _Bounded(Ternary):
    """Ternary codec with a shared scaler above this worker's own clipping bound."""

    bound: float = 0.0

    @property
    def largest(self) -> np.float32:
        return np.float32(self.bound)


@dataclass(frozen=True, kw_only=True)
class TernarySum(Codec):
    """Exact sum of the ternary values of ``workers`` workers with a shared scaler; decodes to their mean.

    The sum of N has 2N+1 levels (section 3.2), so an element takes ceil(log2(2N+1)) bits. ``encode`` takes the integer sums
    as fp32, each from -workers to +workers.

    Args:
        workers: 1 to 32,767.
        scale: the scaler.
    """

    name: ClassVar[str] = "ternary-sum"
    code: ClassVar[int] = 4
    of_sums: ClassVar[bool] = True

    workers: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        legal(1 <= self.workers <= 32767, f"a sum of {self.workers} workers has no payload", "give 1 to 32767")

    @property
    def width(self) -> int:
        """Bits per element."""
        return (2 * self.workers).bit_length()

    @property
    def unit(self) -> np.float32:
        """Decoded value of the sum 1."""
        return np.float32(self.scale) / np.float32(self.workers)

    def body_range(self, count: int) -> tuple[int, int]:
        """Return the bytes of a body: ``width`` bit planes."""
        return (bit_planes.packed_bytes(count, self.width),) * 2

    def parameters(self) -> bytes:
        """The scaler and the number of workers."""
        return struct.pack("<fH", self.scale, self.workers)

    @classmethod
    def of(cls, parameters: bytes) -> TernarySum:
        """Return the codec of a header. Raises PayloadError for a negative or non-numeric scaler, or no workers."""
        (workers,) = struct.unpack_from("<H", parameters, 4)
        if not 1 <= workers <= 32767:
            raise PayloadError(f"a sum of {workers} workers")
        return cls(workers=workers, scale=_scale(parameters))

    def encode_body(self, x: F32, body: Bytes, key: counter.Key, start: int) -> int:
        """Encode sums, shifted by ``workers`` to be non-negative. Raises ValueError for a sum out of range."""
        if x.size and not np.abs(x).max() <= self.workers:
            raise ValueError(f"a sum beyond {self.workers} workers' ternaries")
        body[:] = bit_planes.pack((x.astype(np.int32) + self.workers).astype(np.uint32), self.width)
        return body.size

    def decode_body(self, body: Bytes, count: int) -> F32:
        """Decode as ``scale / workers * sum``."""
        total = bit_planes.unpack(body, count, self.width).view(np.int32) - np.int32(self.workers)
        if total.max(initial=0) > self.workers:
            raise PayloadError(f"a sum of more than {self.workers} workers' ternaries")
        return total.astype(np.float32) * self.unit


def _scale(parameters: bytes) -> float:
    (scale,) = struct.unpack_from("<f", parameters)
    if not 0 <= scale < float("inf"):
        raise PayloadError(f"a scale of {scale}")
    return float(scale)
