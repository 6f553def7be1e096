"""Backends of the codecs: NumPy, C++ and Triton, with equal bits."""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import numpy as np

from paceline.array_types import Bytes
from paceline.codecs import container, counter, native, reference
from paceline.codecs.codec import Codec
from paceline.codecs.moments import Statistics
from paceline.errors import UserError, unknown

NAMES = ("reference", "native", "triton")


class Backend(Statistics, Protocol):
    """An implementation of all kernels; a module is one."""

    name: str

    def serves(self, codec: Codec) -> bool:
        """Return whether it has kernels for this codec here."""

    def encode(self, codec: Codec, x: Any, body: Any, key: counter.Key, start: int) -> int:
        """Write the body of ``x``; return its bytes. Raises ValueError for what the codec cannot hold."""

    def decode(self, codec: Codec, body: Any, out: Any, mode: int) -> None:
        """Read a body of exactly ``out.size`` elements. Raises PayloadError for a body that no encoder writes."""

    def checksum(self, head: bytes, body: Any) -> tuple[int, int]:
        """``container.checksum``."""


class DeviceBackend(Backend, Protocol):
    """A backend with memory that the host cannot read. It handles whole payloads to avoid a wait between body and checksum."""

    def write(self, codec: Codec, x: Any, out: Any, key: counter.Key, start: int) -> int:
        """Write the payload of ``x`` into ``out``, sized for the longest payload. Return its bytes. Raises as ``encode``."""

    def read(self, codec: Codec, head: bytes, sums: tuple[int, int], body: Any, out: Any, mode: int) -> None:
        """``decode``, unless the checksums of ``head`` and ``body`` are not ``sums``: then PayloadError, ``out`` unchanged."""


@cache
def triton() -> Any:
    """Return the GPU's kernels, a ``DeviceBackend``; None without a CUDA device or Triton."""
    try:
        import torch

        if not torch.cuda.is_available():
            return None
        from paceline.codecs import triton as kernels

        return kernels
    except ImportError:
        return None


def check(codec: Codec, backend: str) -> None:
    """Raise UserError when a backend of that name does not exist, is not here or has no such codec; ``""`` is the fastest."""
    if not backend:
        return
    if backend not in NAMES:
        raise unknown("backend", backend, NAMES)
    kernels: Any = reference
    if backend == "triton":
        kernels = triton()
    elif backend == "native":
        kernels = native if native.available() else None
    if kernels is None:
        why = "no CUDA device with Triton" if backend == "triton" else "installed without compiling"
        raise UserError(f"backend {backend!r}: {why}", "leave backend out: the fastest that serves is taken")
    if not kernels.serves(codec):
        raise UserError(f"backend {backend!r} has no {codec.name}", "leave backend out: the fastest that serves is taken")


def pick(codec: Codec, data: Any, backend: str = "") -> Any:
    """Return the kernels for an array: Triton's on a GPU, else C++, else NumPy, unless ``backend`` names one.

    Raises:
        UserError: as ``check``.
        ValueError: a backend that cannot reach the memory of ``data``.
    """
    if backend:
        check(codec, backend)
    if not isinstance(data, np.ndarray):
        kernels = triton()
        if kernels is None or backend in ("reference", "native") or not kernels.serves(codec):
            raise ValueError(f"{codec.name}: a tensor on {data.device} needs the triton backend; move it to the CPU")
        return kernels
    if backend == "triton":
        raise ValueError(f"{codec.name}: the triton backend takes tensors on a GPU; leave backend out for memory of the CPU")
    if backend == "reference" or not native.available() or not native.serves(codec):
        return reference
    return native


def checksum(head: bytes, body: Bytes) -> tuple[int, int]:
    """Return ``container.checksum`` of host memory by the fastest implementation."""
    return native.checksum(head, body) if native.available() else container.checksum(head, body)
