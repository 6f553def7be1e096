"""Expected bodies of frames, by the codec library (docs/wire-format.md)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline import codecs
from paceline.array_types import F32
from paceline.codecs import counter
from paceline.codecs.reference import bit_planes
from paceline.codecs.reference.ternary import TINY_SCALE, Ternary

BLOCK = 1024
"""Values per block of ``inceptionn-scaled``."""
_HEADER = 32  # of a payload
_ENTRY = 4  # of its directory, for up to 16,384 values


def codec(k: int, scaled: bool) -> codecs.Codec:
    """Return the codec with the bound 2^-k. Raises UserError for an illegal k."""
    return codecs.get("inceptionn-scaled" if scaled else "inceptionn", bound=2.0**-k)


def encoded(values: F32, k: int, scaled: bool, backend: str = "native") -> bytes:
    """Return the body of a frame of up to 16,384 values: bursts, scaled ones with a block's exponent before its bursts.

    Raises:
        ValueError: the scaled format, and a value is infinite or no number.
    """
    step = BLOCK if scaled else max(1, values.size)
    kind = codec(k, scaled)
    parts = [
        codecs.encode(kind, values[at : at + step], backend=backend)[_HEADER + _ENTRY :] for at in range(0, values.size, step)
    ]
    return b"".join(part.tobytes() for part in parts)


def decoded(values: F32, k: int, scaled: bool, backend: str = "native") -> F32:
    """Return the values after encoding and decoding."""
    step = BLOCK if scaled else max(1, values.size)
    kind = codec(k, scaled)
    out = np.empty(values.size, np.float32)
    for at in range(0, values.size, step):
        out[at : at + step] = codecs.decode(codecs.encode(kind, values[at : at + step], backend=backend), backend=backend)
    return out


def ternary_encoded(values: F32, scale: np.float32, key: counter.Key, start: int) -> bytes:
    """Return the ternary encoder's body: two bit planes, with draws from ``start`` on. Raises ValueError for inf or NaN."""
    body = np.zeros(bit_planes.packed_bytes(values.size, 2), np.uint8)
    Ternary(scale=float(scale)).encode_body(values, body, key, start)
    return body.tobytes()


def ternary_decoded(body: bytes, count: int, scale: np.float32) -> bytes:
    """Return the fp32 values of a ternary body of the right length. Raises PayloadError for a code that no encoder writes."""
    return Ternary(scale=float(scale)).decode_body(np.frombuffer(body, np.uint8), count).tobytes()


def ternary_summed(sums: NDArray[np.int64], workers: int, ternary: bool = False) -> bytes:
    """Return a ``ternary-sum`` body of several workers, or one worker's ``ternary``."""
    if ternary:
        return bit_planes.pack_planes((sums != 0, sums < 0)).tobytes()
    return bit_planes.pack((sums + workers).astype(np.uint32), (2 * workers).bit_length()).tobytes()


def draw_words(scale: np.float32, key: counter.Key, start: int) -> tuple[int, int, int, int, int, int]:
    """Return the ternary encoder's registers as the host computes them: start, factor, bound, and the key's three words."""
    factor = np.float32(2.0**24) / scale if scale >= TINY_SCALE else np.float32(0)
    after = ((start >> 32) + 1) << 32  # the next multiple of 2^32
    keys = key.low, counter.second_word(key, start), counter.second_word(key, after)
    return (start & 0xFFFFFFFF, word(factor), word(scale), *keys)


def word(value: np.float32) -> int:
    """Return the bits of an fp32 number."""
    return int(value.view(np.uint32))


def header(beats: int, marked: bool = True, ipv6: bool = False) -> bytes:
    """Return a frame's header beats: EtherType and type of service as the engines read them, other bytes counting up."""
    octets = bytearray(index % 251 for index in range(32 * beats))
    if ipv6:
        octets[12:16] = b"\x86\xdd" + (b"\x62\x80" if marked else b"\x60\x00")
    else:
        octets[12:16] = b"\x08\x00\x45" + (b"\x28" if marked else b"\x00")
    return bytes(octets)
