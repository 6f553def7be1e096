"""TernGrad's codec: stochastic ternary values, and the exact integer sum of several workers' (Wen et al. 2017).

    g~ = s * sign(g) o b,   P(b_k = 1) = |g_k| / s,   s = max |g|                                (equations 1 and 2)

The draw compares integers below 2**24 with ``|g| * (2**24 / s)`` in fp32: one correctly rounded division per tensor, one
correctly rounded product per element, no fused operation. Therefore every implementation makes the same choice.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline.codecs import bits, counter

F32 = NDArray[np.float32]
Ints = NDArray[np.signedinteger]

_HEADER = struct.Struct("<4sBBHQfI")  # magic, format version, codec, workers, count, scale, CRC-32
_MAGIC, _VERSION, _CODEC = b"PACE", 1, 1
HEADER_BYTES = _HEADER.size
TINY_SCALE = np.float32(2.0**-100)  # below it 2**24 / s overflows: such a tensor is sent as zeros


class PayloadError(ValueError):
    """A payload that is truncated, corrupted, or of another codec or version."""


class Moments(NamedTuple):
    """What clipping and scaling need of one tensor: standard deviation and largest magnitude (both fp32)."""

    sigma: np.float32
    peak: np.float32

    @property
    def finite(self) -> bool:
        """Whether every element was a finite number."""
        return bool(np.isfinite(self.peak))


def moments(x: F32) -> Moments:
    """Standard deviation about the mean (accumulated in fp64) and max |x| of a 1-D fp32 array; zeros for an empty one."""
    if x.size == 0:
        return Moments(np.float32(0), np.float32(0))
    peak = np.maximum(x.max(), -x.min())
    if not np.isfinite(peak):
        return Moments(np.float32(np.nan), np.float32(np.inf))
    mean = np.add.reduce(x, dtype=np.float64) / x.size
    centred = x - np.float32(mean)
    variance = np.add.reduce(np.square(centred, dtype=np.float64)) / x.size
    return Moments(np.float32(np.sqrt(variance)), peak)


def clip_bound(m: Moments, clip: float | None) -> np.float32:
    """The scaler of one tensor: ``min(max |x|, clip * sigma)``, TernGrad's equation 11 with c = 2.5; max |x| without clip."""
    if clip is None or m.sigma == 0:  # a constant tensor has no outliers
        return m.peak
    bound: np.float32 = np.minimum(m.peak, np.float32(clip) * m.sigma)
    return bound


def ternarize(x: F32, bound: np.float32, scale: np.float32, stream: counter.Key, start: int) -> tuple[bits.Plane, bits.Plane]:
    """The two bit planes (nonzero, negative) of the ternary form of ``x`` clipped to ``+-bound``.

    Args:
        bound: own clipping bound; magnitudes beyond it count as it.
        scale: the scaler shared by all workers, at least ``bound``.
        stream, start: which draws to use: element k of ``x`` uses draw ``start + k``.
    """
    if scale < TINY_SCALE:
        none = np.zeros(x.size, np.bool_)
        return none, none
    magnitude = np.abs(x)
    np.minimum(magnitude, bound, out=magnitude)
    magnitude *= np.float32(2.0**24) / scale
    nonzero = counter.uniform24(stream, start, x.size).astype(np.float32) < magnitude
    return nonzero, nonzero & (x < 0)


def unpack_codes(message: bits.Bytes, count: int) -> NDArray[np.int8]:
    """The ternary values -1, 0, +1 of a push message."""
    nonzero, negative = bits.unpack_planes(message, count, 2)
    return nonzero.view(np.int8) - (negative.view(np.int8) << 1)


def pack_sum(total: Ints, workers: int) -> bits.Bytes:
    """The sum of ``workers`` ternaries, each in -workers to +workers, in ceil(log2(2 workers + 1)) bits an element."""
    return bits.pack((total + workers).astype(np.uint32), (2 * workers).bit_length())


def unpack_sum(message: bits.Bytes, count: int, workers: int) -> NDArray[np.int32]:
    """The inverse of ``pack_sum``."""
    return bits.unpack(message, count, (2 * workers).bit_length()).view(np.int32) - np.int32(workers)


@dataclass(frozen=True)
class Ternary:
    """The codec as a stand-alone piece: one tensor in, one self-describing payload out.

    Args:
        clip: clip at this many standard deviations first (TernGrad uses 2.5); None does not clip.
        scale: the scaler; None means max |x| of what is encoded, after clipping.
    """

    clip: float | None = None
    scale: float | None = None
    name: str = "ternary"

    def __post_init__(self) -> None:
        for what, value in (("clip", self.clip), ("scale", self.scale)):
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"{what} is {value}; give a finite number from 0 up, or None")

    def payload_bytes(self, count: int) -> int:
        """Exact length of the payload of ``count`` elements, header included."""
        return HEADER_BYTES + bits.packed_bytes(count, 2)

    def encode(self, x: ArrayLike, seed: int = 0, step: int = 0, rank: int = 0) -> bits.Bytes:
        """A 1-D fp32 array (NumPy or CPU torch) as a uint8 payload.

        Raises:
            ValueError: ``x`` is not 1-D, or holds NaN or infinity, which have no ternary form.
        """
        values = np.ascontiguousarray(x, dtype=np.float32)
        if values.ndim != 1:
            raise ValueError(f"encode takes a 1-D array, got shape {values.shape}; flatten it first")
        m = moments(values)
        if not m.finite:
            raise ValueError("NaN or infinity cannot be ternarised; send this tensor dense")
        bound = clip_bound(m, self.clip)
        scale = bound if self.scale is None else np.float32(self.scale)
        planes = ternarize(values, np.minimum(bound, scale), scale, counter.key(seed, step, rank), 0)
        return _payload(bits.pack_planes(planes), 1, values.size, scale)

    def encode_sum(self, total: Ints, workers: int, scale: float) -> bits.Bytes:
        """The integer sum of ``workers`` ternaries, 2 to 32,767, with one shared scaler; decodes to their mean."""
        if not 2 <= workers <= 32767:
            raise ValueError(f"a sum of {workers} workers has no payload; give 2 to 32767")
        return _payload(pack_sum(total, workers), workers, total.size, np.float32(scale))

    def decode(self, payload: bits.Bytes) -> F32:
        """fp32 values of a payload: ``scale * code``, or ``scale / workers * sum`` for a sum.

        Raises:
            PayloadError: truncated, corrupted, another codec or version.
        """
        body, workers, count, scale = _open(payload)
        if workers == 1:
            codes = unpack_codes(body, count)
            if codes.min(initial=0) < -1:
                raise PayloadError("a negative zero: no encoder writes this code")
            return codes * scale
        total = unpack_sum(body, count, workers)
        if total.max(initial=0) > workers:
            raise PayloadError(f"a sum of more than {workers} workers' ternaries")
        return total.astype(np.float32) * (scale / np.float32(workers))

    def decode_add(self, payload: bits.Bytes, out: F32) -> None:
        """``out += decode(payload)``. Raises PayloadError as ``decode``; ValueError when ``out`` has another length."""
        values = self.decode(payload)
        if out.shape != values.shape:
            raise ValueError(f"out has shape {out.shape}, the payload {values.size} elements")
        out += values


def _payload(body: bits.Bytes, workers: int, count: int, scale: np.float32) -> bits.Bytes:
    fields = (_MAGIC, _VERSION, _CODEC, workers, count, float(scale))
    header = _HEADER.pack(*fields, _checksum(_HEADER.pack(*fields, 0), body))
    return np.concatenate([np.frombuffer(header, np.uint8), body])


def _checksum(header: bytes, body: bits.Bytes) -> int:
    """CRC-32 (zlib's) of everything but the checksum itself: the header's other fields, then the body."""
    return zlib.crc32(body.data, zlib.crc32(header[: HEADER_BYTES - 4]))


def _open(payload: bits.Bytes) -> tuple[bits.Bytes, int, int, np.float32]:
    data = np.ascontiguousarray(payload, dtype=np.uint8).reshape(-1)
    if data.size < HEADER_BYTES:
        raise PayloadError(f"payload of {data.size} bytes is shorter than the {HEADER_BYTES}-byte header")
    magic, version, codec, workers, count, scale, crc = _HEADER.unpack(data[:HEADER_BYTES].tobytes())
    if magic != _MAGIC or version != _VERSION or codec != _CODEC or workers < 1:
        raise PayloadError(f"not a ternary payload of version {_VERSION}: magic {magic!r}, version {version}, codec {codec}")
    width = 2 if workers == 1 else (2 * workers).bit_length()
    body = data[HEADER_BYTES:]
    if body.size != bits.packed_bytes(count, width):
        raise PayloadError(f"{count} elements take {bits.packed_bytes(count, width)} bytes, the payload holds {body.size}")
    if _checksum(data[:HEADER_BYTES].tobytes(), body) != crc:
        raise PayloadError("the checksum does not match: the payload was changed on its way")
    if not 0 <= scale < np.inf:
        raise PayloadError(f"a scale of {scale}")
    return body, workers, count, np.float32(scale)
