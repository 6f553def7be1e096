"""Which implementation of a codec runs: NumPy, C++ or Triton. All give the same bits."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from paceline.codecs import container, counter, native
from paceline.codecs.codec import Bytes, Codec, is_tensor
from paceline.codecs.container import PayloadError
from paceline.errors import UserError, unknown


class _Reference:
    """The specification itself."""

    name = "reference"

    def serves(self, codec: Codec) -> bool:
        return True

    def encode(self, codec: Codec, x: Any, body: Any, key: counter.Key, start: int) -> int:
        return codec.encode_body(x, body, key, start)

    def decode(self, codec: Codec, body: Any, out: Any, mode: int) -> None:
        codec.decode_onto(body, out, mode)

    def checksum(self, head: bytes, body: Any) -> tuple[int, int]:
        return container.checksum(head, body)

    def peak(self, x: Any) -> float:
        return float(np.abs(x).max(initial=0))

    def sums(self, x: Any) -> tuple[float, float, float]:
        from paceline.codecs import ternary

        return ternary.sums(x)


REFERENCE = _Reference()
NAMES = ("reference", "native", "triton")


@cache
def triton() -> Any:
    """The GPU's kernels; None where there is no CUDA device or no Triton."""
    try:
        import torch

        return importlib.import_module("paceline.codecs.triton") if torch.cuda.is_available() else None
    except ImportError:
        return None


def _all() -> dict[str, Any]:
    return {"reference": REFERENCE, "native": native if native.available() else None}


def check(codec: Codec) -> None:
    """Raises UserError when the backend that ``codec`` asks for does not exist or does not serve here."""
    if not codec.backend:
        return
    if codec.backend not in NAMES:
        raise unknown("backend", codec.backend, NAMES)
    found = triton() if codec.backend == "triton" else _all()[codec.backend]
    if found is None:
        why = "no CUDA device with Triton" if codec.backend == "triton" else "installed without compiling"
        raise UserError(f"backend {codec.backend!r}: {why}", "leave backend out: the fastest that serves is taken")
    if not found.serves(codec):
        raise UserError(f"backend {codec.backend!r} has no {codec.name}", "leave backend out: the fastest that serves is taken")


def pick(codec: Codec, data: Any, backend: str = "") -> Any:
    """The kernels for an array: Triton's for one on a GPU, else C++, else NumPy, unless the codec or ``backend`` names one."""
    wanted = backend or codec.backend
    if not isinstance(data, np.ndarray):
        kernels = triton()
        if kernels is None or wanted in ("reference", "native") or not kernels.serves(codec):
            raise ValueError(f"{codec.name}: a tensor on {data.device} needs the triton backend; move it to the CPU")
        return kernels
    if wanted == "triton":
        raise ValueError(f"{codec.name}: the triton backend takes tensors on a GPU; leave backend out for memory of the CPU")
    if wanted == "reference" or not native.available() or not native.serves(codec):
        return REFERENCE
    return native


def checksum(head: bytes, body: Bytes) -> tuple[int, int]:
    """``container.checksum`` of host memory by the fastest implementation."""
    return native.checksum(head, body) if native.available() else container.checksum(head, body)


def kind(code: int) -> type[Codec]:
    """The codec class with that number in the header. Raises PayloadError for an unknown one."""
    from paceline.codecs import registry

    if code not in registry.BY_CODE:
        raise PayloadError(f"codec number {code} is unknown to this Paceline: install the same one on every rank")
    return registry.BY_CODE[code]


def as_bytes(payload: Any) -> Any:
    """A payload as a contiguous 1-D array of bytes, on its own device."""
    if is_tensor(payload):
        tensor = payload.detach().reshape(-1)
        if tensor.dtype.itemsize != 1:
            raise PayloadError(f"a payload is uint8, not {tensor.dtype}")
        return tensor.numpy() if tensor.device.type == "cpu" else tensor
    if isinstance(payload, bytes | bytearray | memoryview):
        return np.frombuffer(payload, np.uint8)
    data = np.asarray(payload)
    if data.dtype != np.uint8:
        raise PayloadError(f"a payload is uint8, not {data.dtype}")
    return np.ascontiguousarray(data).reshape(-1)


def host_bytes(data: Any) -> bytes:
    """A few bytes of a payload, in host memory."""
    return data.tobytes() if isinstance(data, np.ndarray) else bytes(data.cpu().numpy())


def empty_bytes(like: Any, count: int) -> Bytes:
    """Room for a payload beside ``like``."""
    return np.empty(count, np.uint8) if isinstance(like, np.ndarray) else like.new_empty(count, dtype=_torch().uint8)


def empty_floats(like: Any, count: int) -> Any:
    """Room for ``count`` fp32 values beside ``like``. Raises PayloadError when the memory does not hold so many."""
    try:
        return np.empty(count, np.float32) if isinstance(like, np.ndarray) else like.new_empty(count, dtype=_torch().float32)
    except (MemoryError, ValueError, RuntimeError):
        raise PayloadError(f"{count} elements do not fit into memory") from None


def writable(out: Any, like: Any, dtypes: Sequence[str]) -> Any:
    """``out`` as the kernels write into it: as a NumPy array where ``like`` is one, else the tensor itself.

    Args:
        dtypes: what ``out`` may hold; bytes must also be contiguous.

    Raises:
        ValueError: ``out`` is something else, on another device, not 1-D or read-only.
    """
    host = isinstance(like, np.ndarray)
    view = out
    if host and is_tensor(out):
        try:
            view = out.detach().numpy()
        except (TypeError, RuntimeError):  # on a GPU, sparse, or of a dtype that NumPy has not
            view = None
    if isinstance(view, np.ndarray) if host else is_tensor(view) and view.device == like.device:
        dtype = view.dtype.name if host else str(view.dtype).removeprefix("torch.")
        gapless = "uint8" not in dtypes or (view.flags.c_contiguous if host else view.is_contiguous())
        if dtype in dtypes and view.ndim == 1 and gapless and (not host or view.flags.writeable):
            return view
    wanted = f"1-D, writable, {'contiguous, ' if 'uint8' in dtypes else ''}{' or '.join(dtypes)}"
    raise ValueError(f"out is {_described(out)}; give a NumPy array or a tensor: {wanted}, on the device of what is read")


def _described(out: Any) -> str:
    """What somebody gave, in words."""
    if not isinstance(out, np.ndarray) and not is_tensor(out):
        return f"of type {type(out).__name__}"
    where = f"on {out.device}" if is_tensor(out) else "" if out.flags.writeable else "read-only"
    strides = out.strides if isinstance(out, np.ndarray) else out.stride() if out.layout == _torch().strided else out.layout
    return f"{out.dtype} of shape {tuple(out.shape)}, strides {strides} {where}".rstrip()


def _torch() -> Any:
    import torch

    return torch
