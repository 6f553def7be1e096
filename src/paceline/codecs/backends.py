"""Backends of the codecs in NumPy, C++ and Triton, with bit-identical results."""

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
    """Implementation of all kernels, such as a module."""

    name: str

    def serves(self, codec: Codec) -> bool:
        """Return whether this backend has kernels for the codec on this machine."""

    def encode(self, codec: Codec, x: Any, body: Any, key: counter.Key, start: int) -> int:
        """Write the body of ``x`` and return the number of bytes. Raises ValueError for values that the codec cannot
        represent."""

    def decode(self, codec: Codec, body: Any, out: Any, mode: int) -> None:
        """Read a body of exactly ``out.size`` elements. Raises PayloadError for a body that no encoder writes."""

    def checksum(self, head: bytes, body: Any) -> tuple[int, int]:
        """Compute ``container.checksum``."""


class DeviceBackend(Backend, Protocol):
    """A backend whose memory the host cannot read. It handles whole payloads to avoid a wait between body and checksum."""

    def write(self, codec: Codec, x: Any, out: Any, key: counter.Key, start: int) -> int:
        """Write the payload of ``x`` into ``out``, which has room for the longest payload. Returns its bytes. Raises as
        ``encode``."""

    def read(self, codec: Codec, head: bytes, sums: tuple[int, int], body: Any, out: Any, mode: int) -> None:
        """Decode a payload if checksums of ``head`` and ``body`` equal ``sums``, else raise PayloadError and leave ``out``."""

    # The host waits for none of the following. States are rows of three int64 words on the device: 1 in the first says that a
    # message is damaged, 1 in the second that data has no form, the third has the bytes of a body.

    def queue_write(
        self, codec: Codec, x: Any, out: Any, key: counter.Key, start: int, state: Any, findings: Any = None
    ) -> int | None:
        """Queue ``write``. Returns the body's bytes, or None if only ``state`` will have them.

        Args:
            findings: states. If one of them has a 1, the payload gets a wrong checksum.
        """

    def queue_read(self, codec: Codec, payload: Any, out: Any, mode: int, state: Any) -> None:
        """Queue the decoding of a payload of ``codec`` into fp32 ``out``, contiguous. A damaged payload leaves ``out``."""

    def queue_moments(self, parts: Any) -> Any:
        """Queue standard deviation and largest magnitude of 1-D fp32 tensors. Returns them as (count, 2) fp32."""


@cache
def triton() -> DeviceBackend | None:
    """Return the GPU's kernels; None without a CUDA device or Triton."""
    try:
        import torch

        if not torch.cuda.is_available():
            return None
        from paceline.codecs import triton as kernels

        return kernels
    except ImportError:
        return None


def check(codec: Codec, backend: str) -> None:
    """Raise UserError if no backend of that name exists, runs here and has the codec; ``""`` means the fastest."""
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
