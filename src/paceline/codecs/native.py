"""The C++ kernels (``csrc/``) as a backend."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from paceline.codecs import counter
from paceline.codecs.codec import NON_FINITE, Codec
from paceline.codecs.container import PayloadError, checksum

try:
    from paceline import _native
except ImportError:
    _native = None  # type: ignore[assignment]

name = "native"
threads = int(os.environ.get("PACELINE_THREADS", "2"))


def available() -> bool:
    """Whether the extension was built."""
    return _native is not None


def serves(codec: Codec) -> bool:
    """Whether it has kernels for this codec."""
    return codec.name in _KERNELS


def encode(codec: Codec, x: Any, body: Any, key: counter.Key, start: int) -> int:
    """See ``codec.Backend``."""
    written: int = _KERNELS[codec.name][0](x, body, codec.k, threads)  # type: ignore[attr-defined]
    if written < 0:
        raise ValueError(NON_FINITE)
    return written


def decode(codec: Codec, body: Any, out: Any, mode: int) -> None:
    """See ``codec.Backend``."""
    if _KERNELS[codec.name][1](body, out, codec.k, mode, threads):  # type: ignore[attr-defined]
        raise PayloadError("malformed")


_KERNELS: dict[str, tuple[Callable[..., int], Callable[..., int]]] = {}
if _native is not None:
    _KERNELS = {
        "inceptionn": (_native.inceptionn_encode, _native.inceptionn_decode),
        "inceptionn-scaled": (_native.inceptionn_scaled_encode, _native.inceptionn_scaled_decode),
    }
