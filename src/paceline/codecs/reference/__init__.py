"""The codecs, a file each, with their kernels in NumPy: the specification, and the backend that runs it."""

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
    """See ``backends.Backend``."""
    return codec.encode_body(x, body, key, start)


def decode(codec: Codec, body: Bytes, out: Any, mode: int) -> None:
    """See ``backends.Backend``."""
    codec.decode_onto(body, out, mode)


def checksum(head: bytes, body: Bytes) -> tuple[int, int]:
    """See ``container.checksum``."""
    return container.checksum(head, body)


def peak(x: F32) -> float:
    """See ``moments.Statistics``."""
    return float(np.abs(x).max(initial=0))


def sums(x: F32) -> tuple[float, float, float]:
    """See ``moments.sums``."""
    return moments.sums(x)
