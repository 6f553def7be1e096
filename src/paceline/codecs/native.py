"""The C++ kernels (``csrc/``) as a backend."""

from __future__ import annotations

from typing import Any

from paceline.codecs import counter
from paceline.codecs.codec import Codec

name = "native"


def available() -> bool:
    """Whether the extension was built."""
    return False


def serves(codec: Codec) -> bool:
    """Whether it has kernels for this codec."""
    return False


def encode(codec: Codec, x: Any, body: Any, key: counter.Key, start: int) -> int:
    """See ``codec.Backend``."""
    raise NotImplementedError


def decode(codec: Codec, body: Any, out: Any, mode: int) -> None:
    """See ``codec.Backend``."""
    raise NotImplementedError


def checksum(head: bytes, body: Any) -> tuple[int, int]:
    """See ``codec.Backend``."""
    raise NotImplementedError
