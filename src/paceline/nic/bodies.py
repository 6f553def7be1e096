"""What the engines must give: a frame's body, by the codec library (docs/wire-format.md)."""

from __future__ import annotations

import numpy as np

from paceline import codecs
from paceline.array_types import F32

BLOCK = 1024
"""Values of a block of ``inceptionn-scaled``."""
_HEADER = 32  # of a payload
_ENTRY = 4  # of its directory, for up to 16,384 values


def codec(k: int, scaled: bool) -> codecs.Codec:
    """The codec with the bound 2^-k. Raises UserError for a k that it does not have."""
    return codecs.get("inceptionn-scaled" if scaled else "inceptionn", bound=2.0**-k)


def encoded(values: F32, k: int, scaled: bool, backend: str = "native") -> bytes:
    """The body of a frame of up to 16,384 values: bursts, and in the scaled format each block's exponent in front of its own.

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
    """The values as they come out at the other end."""
    step = BLOCK if scaled else max(1, values.size)
    kind = codec(k, scaled)
    out = np.empty(values.size, np.float32)
    for at in range(0, values.size, step):
        out[at : at + step] = codecs.decode(codecs.encode(kind, values[at : at + step], backend=backend), backend=backend)
    return out


def header(beats: int, marked: bool = True, ipv6: bool = False) -> bytes:
    """Header beats of a frame: EtherType and type of service as the engines read them, other bytes counting up."""
    octets = bytearray(index % 251 for index in range(32 * beats))
    if ipv6:
        octets[12:16] = b"\x86\xdd" + (b"\x62\x80" if marked else b"\x60\x00")
    else:
        octets[12:16] = b"\x08\x00\x45" + (b"\x28" if marked else b"\x00")
    return bytes(octets)
