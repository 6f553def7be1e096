"""Reference implementation of the codecs in NumPy, one file each: the specification, and the backend that runs it."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.array_types import F32, Bytes
from paceline.codecs import container, counter, moments
from paceline.codecs.codec import Codec

name = "reference"


def serves(codec: Codec) -> bool:
    """Return True: every codec has its reference."""
    return True


def encode(codec: Codec, x: F32, body: Bytes, key: counter.Key, start: int) -> int:
    """Write the body of ``x``; see ``backends.Backend``."""
    return codec.encode_body(x, body, key, start)


def decode(codec: Codec, body: Bytes, out: Any, mode: int) -> None:
    """Read a body into ``out``; see ``backends.Backend``."""
    codec.decode_onto(body, out, mode)


def checksum(head: bytes, body: Bytes) -> tuple[int, int]:
    """Compute ``container.checksum``."""
    return container.checksum(head, body)


def peak(x: F32) -> float:
    """Return max |x|; see ``moments.Statistics``."""
    return float(np.abs(x).max(initial=0))


def sums(x: F32) -> tuple[float, float, float]:
    """Return the sums for a standard deviation; see ``moments.sums``."""
    return moments.sums(x)
