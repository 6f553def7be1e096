"""Top-k sparsification: the k largest elements of a tensor and their positions (Aji & Heafield 2017; Lin et al. 2018, "Deep
Gradient Compression"). The caller feeds the remainder back.

The k elements of largest magnitude are sent, of equal ones those of lowest index. k follows from the number of elements and the
density, and positions take a size that follows from both: either one bit an element, or Elias-Fano's code (Elias 1974; Fano
1971), where element j at index i_j sends the low 8 or 16 bits of i_j and a one at bit ``j + (i_j >> low bits)``.

With ``chunk`` the elements are the largest of every chunk, and values may take two bits (``two_bit_values``), as in SparseLoCo
(Sarfi et al. 2025, arXiv 2508.15706). Its authors send ``log2(chunk)`` bits a position, which is more.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from paceline.array_types import F32, Bytes, Ints
from paceline.codecs import counter
from paceline.codecs.codec import NON_FINITE, SET, Codec, apply, legal
from paceline.codecs.container import PayloadError
from paceline.codecs.reference import two_bit_values
from paceline.codecs.reference.blocks import LOG2_LEAST, LOG2_MOST

PARTS = 1_000_000  # density counts in millionths, so that k needs no floating point
LEAST_PARTS = 100  # a payload of b bytes never claims more than 10**4 / 5 * b elements
_INFINITY = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)


class PayloadLayout(NamedTuple):
    """Layout of the three parts of a body.

    Attributes:
        kept: elements sent.
        low_bits: bits of an index that are sent as they are: 8 or 16; 0 when the marks are one bit an element instead.
        mark_bits: bits of the marks without their padding.
        marks: bytes of the marks, a multiple of 8. They are followed by the values, then by the low bits.
        values: bytes of the values.
    """

    kept: int
    low_bits: int
    mark_bits: int
    marks: int
    values: int

    @property
    def total(self) -> int:
        """Bytes of the body."""
        return self.marks + self.values + self.kept * self.low_bits // 8


def layout(count: int, kept: int, value_bits: int, chunks: int = 0) -> PayloadLayout:
    """Return the shortest of the three layouts; among equal ones, the one with the fewest low bits (0, 8, 16).

    Args:
        chunks: number of chunks, which have two levels each if values take two bits.
    """
    values = two_bit_values.size(kept, chunks) if value_bits == 2 else kept * value_bits // 8
    layouts = []
    for low_bits in (0, 8, 16):
        bits = kept + (max(count - 1, 0) >> low_bits) if low_bits else count
        layouts.append(PayloadLayout(kept, low_bits, bits, -(-bits // 64) * 8, values))
    return min(layouts, key=lambda candidate: candidate.total)


@dataclass(frozen=True, kw_only=True)
class TopK(Codec):
    """Codec of the ``ceil(density * n)`` elements of largest magnitude; all others decode to 0.

    Args:
        density: share of the elements that is sent, 0.0001 to 1, taken to the nearest millionth.
        value_bits: 32 sends fp32; 16 sends bfloat16, rounded to nearest even and never up to infinity; 2 sends a sign and one
            of two magnitudes of the chunk, and needs ``chunk``.
        chunk: elements of which the largest are sent, a power of two from 64 to 65,536; 0: those of the whole payload.
    """

    name: ClassVar[str] = "topk"
    code: ClassVar[int] = 10

    density: float = 0.01
    value_bits: int = 32
    chunk: int = 0

    def __post_init__(self) -> None:
        legal(LEAST_PARTS / PARTS <= self.density <= 1, f"a density of {self.density}", "give 0.0001 to 1")
        legal(self.value_bits in (2, 16, 32), f"values of {self.value_bits} bits", "give 2, 16 or 32")
        possible = int(self.chunk).bit_count() == 1 and 1 << LOG2_LEAST <= self.chunk <= 1 << LOG2_MOST
        legal(self.chunk == 0 or possible, f"a chunk of {self.chunk} elements", "give 0 or a power of two from 64 to 65536")
        legal(self.value_bits > 2 or self.chunk > 0, "values of 2 bits without a chunk", "give chunk=4096")

    @property
    def parts(self) -> int:
        """The density in millionths."""
        return round(self.density * PARTS)

    @property
    def alignment(self) -> int:
        """A chunk; see ``Codec``."""
        return self.chunk or 1

    def kept(self, count: int) -> int:
        """Return k, the number of ``count`` elements that are sent: at least 1 of each chunk unless there are none."""
        whole, rest = divmod(count, self.chunk) if self.chunk else (0, count)
        return whole * self.kept_of_chunk + -(-rest * self.parts // PARTS)

    @property
    def kept_of_chunk(self) -> int:
        """Elements that are sent of a whole chunk."""
        return -(-self.chunk * self.parts // PARTS)

    def layout(self, count: int) -> PayloadLayout:
        """Return the layout of the body of ``count`` elements."""
        chunks = -(-count // self.chunk) if self.chunk else 0
        return layout(count, self.kept(count), self.value_bits, chunks)

    def parameters(self) -> bytes:
        """The density in millionths, the bits of a value, and log2 of the chunk or 0."""
        return struct.pack("<IBB", self.parts, self.value_bits, max(0, int(self.chunk).bit_length() - 1))

    @classmethod
    def of(cls, parameters: bytes) -> TopK:
        """Return the codec of a header. Raises PayloadError for a density or width that no encoder uses."""
        parts, value_bits, log2 = struct.unpack_from("<IBB", parameters)
        legal_chunk = LOG2_LEAST <= log2 <= LOG2_MOST or (log2 == 0 and value_bits > 2)
        if not LEAST_PARTS <= parts <= PARTS or value_bits not in (2, 16, 32) or not legal_chunk or any(parameters[6:]):
            raise PayloadError(f"topk has no parameters {parameters.hex()}")
        return cls(density=parts / PARTS, value_bits=value_bits, chunk=1 << log2 if log2 else 0)

    def body_range(self, count: int) -> tuple[int, int]:
        """Return the bytes of a body: marks, values and low bits of the indices."""
        return (self.layout(count).total,) * 2

    def encode_body(self, x: F32, body: Bytes, key: counter.Key, start: int) -> int:
        """Write the largest elements. Raises ValueError for NaN or infinity anywhere in ``x``."""
        at = self.layout(x.size)
        index = largest_of_chunks(x, self) if self.chunk else largest(x, at.kept)
        marks, values, low = _parts(body, at)
        places = np.arange(at.kept) + (index >> at.low_bits) if at.low_bits else index
        bits = np.zeros(8 * marks.size, np.bool_)
        bits[places] = True
        marks[:] = np.packbits(bits, bitorder="little")
        if self.value_bits == 2:
            two_bit_values.pack(x[index], self.kept_of_chunk, values)
        elif self.value_bits == 16:
            values.view("<u2")[:] = two_bit_values.bf16(x[index])
        else:
            values.view("<f4")[:] = x[index]
        if at.low_bits:
            low.view(f"<u{at.low_bits // 8}")[:] = index & (1 << at.low_bits) - 1
        return body.size

    def decode_body(self, body: Bytes, count: int) -> F32:
        """Decode the sent elements to their positions, and zeros elsewhere."""
        out = np.zeros(count, np.float32)
        index, values = self._sent(body, count)
        out[index] = values
        return out

    def decode_onto(self, body: Bytes, out: F32, mode: int) -> None:
        """Add, subtract or set. Adding changes only the elements that were sent; even a -0 elsewhere stays."""
        index, values = self._sent(body, out.shape[0])
        if mode == SET:
            out[:] = 0
        part = out[index]
        apply(part, values, mode)
        out[index] = part

    def _sent(self, body: Bytes, count: int) -> tuple[Ints, F32]:
        at = self.layout(count)
        marks, packed, low = _parts(body, at)
        places = np.flatnonzero(np.unpackbits(marks, bitorder="little"))
        if places.size != at.kept or (at.kept and places[-1] >= at.mark_bits):
            raise PayloadError(f"the marks are not {at.kept} ones within {at.mark_bits} bits")
        index = places
        if at.low_bits:
            index = (places - np.arange(at.kept) << at.low_bits) + low.view(f"<u{at.low_bits // 8}")
            if (np.diff(index) <= 0).any() or (at.kept and index[-1] >= count):
                raise PayloadError("an index is out of order or beyond the last element")
        if self.chunk and (index // self.chunk != np.arange(at.kept) // self.kept_of_chunk).any():
            raise PayloadError("another number of elements of a chunk than are sent")
        if self.value_bits == 2:
            return index, two_bit_values.unpack(packed, at.kept, self.kept_of_chunk)
        values = packed.view("<u4") if self.value_bits == 32 else packed.view("<u2").astype(np.uint32) << 16
        if ((values & _MAGNITUDE) >= _INFINITY).any():
            raise PayloadError("NaN or infinity among the values")
        return index, values.view(np.float32)


def largest(x: F32, kept: int) -> Ints:
    """Return ascending indices of the ``kept`` elements of largest magnitude; ties go to the lowest index. Raises ValueError
    for NaN."""
    magnitude = x.view(np.uint32) & _MAGNITUDE
    if magnitude.max(initial=0) >= _INFINITY:
        raise ValueError(NON_FINITE)
    if kept == 0:
        return np.empty(0, np.int64)
    threshold = np.partition(magnitude, x.size - kept)[x.size - kept]
    chosen = magnitude > threshold
    equal = np.flatnonzero(magnitude == threshold)
    chosen[equal[: kept - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def largest_of_chunks(x: F32, codec: TopK) -> Ints:
    """Return ``largest`` of every chunk."""
    starts = range(0, x.size, codec.chunk)
    parts = [x[start : start + codec.chunk] for start in starts]
    found = [start + largest(part, codec.kept(part.size)) for start, part in zip(starts, parts, strict=True)]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _parts(body: Bytes, at: PayloadLayout) -> tuple[Bytes, Bytes, Bytes]:
    """Return marks, values and low bits of a body as views."""
    return body[: at.marks], body[at.marks : at.marks + at.values], body[at.marks + at.values :]
