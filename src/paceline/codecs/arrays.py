"""Conversion of a user's memory to the form of the kernels: NumPy arrays on the host, tensors on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.array_types import F32, Bytes
from paceline.codecs.container import PayloadError


def is_tensor(x: Any) -> bool:
    """Return whether an object is a tensor of torch, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def vector(x: Any) -> F32:
    """Return ``x`` as a contiguous 1-D fp32 array: NumPy, or a torch tensor on its device.

    Raises:
        ValueError: another shape, or no real numbers.
    """
    if is_tensor(x):
        if x.is_complex():
            raise ValueError(f"encode takes real numbers, got {x.dtype}")
        if x.layout is not sys.modules["torch"].strided:
            raise ValueError(f"encode takes a dense tensor, got {x.layout}; call to_dense() first")
        tensor = x.detach().float().contiguous()
        values: Any = tensor.numpy() if on_host(tensor) else tensor
    else:
        given = np.asarray(x)
        if given.dtype.kind in "cmM":
            raise ValueError(f"encode takes real numbers, got {given.dtype}")
        try:
            values = np.ascontiguousarray(given, dtype=np.float32)
        except TypeError as error:
            raise ValueError(f"encode takes real numbers: {error}") from None
    if values.ndim != 1:
        raise ValueError(f"encode takes a 1-D array, got shape {tuple(values.shape)}; flatten it first")
    return values  # type: ignore[no-any-return]


def on_host(tensor: Any) -> bool:
    """Return whether the host can read the memory of a tensor."""
    return bool(tensor.device.type == "cpu")


def as_bytes(payload: Any) -> Any:
    """Return a payload as a contiguous 1-D array of bytes, on its device."""
    if is_tensor(payload):
        tensor = payload.detach() if payload.dim() == 1 and payload.is_contiguous() else payload.detach().reshape(-1)
        if tensor.dtype.itemsize != 1:
            raise PayloadError(f"a payload is uint8, not {tensor.dtype}")
        return tensor.numpy() if on_host(tensor) else tensor
    if isinstance(payload, bytes | bytearray | memoryview):
        return np.frombuffer(payload, np.uint8)
    data = np.asarray(payload)
    if data.dtype != np.uint8:
        raise PayloadError(f"a payload is uint8, not {data.dtype}")
    return np.ascontiguousarray(data).reshape(-1)


def host_bytes(data: Any) -> bytes:
    """Return a few bytes of a payload in host memory."""
    return data.tobytes() if isinstance(data, np.ndarray) else bytes(data.cpu().numpy())


def empty_bytes(like: Any, count: int) -> Bytes:
    """Allocate memory for a payload on the device of ``like``."""
    return np.empty(count, np.uint8) if isinstance(like, np.ndarray) else like.new_empty(count, dtype=_torch().uint8)


def empty_floats(like: Any, count: int) -> Any:
    """Allocate memory for ``count`` fp32 values on the device of ``like``. Raises PayloadError if the memory does not
    suffice."""
    try:
        return np.empty(count, np.float32) if isinstance(like, np.ndarray) else like.new_empty(count, dtype=_torch().float32)
    except (MemoryError, ValueError, RuntimeError):
        raise PayloadError(f"{count} elements do not fit into memory") from None


def writable(out: Any, like: Any, dtypes: Sequence[str]) -> Any:
    """Convert ``out`` to the form that the kernels write: a NumPy array if ``like`` is one, else a tensor.

    Args:
        dtypes: legal types of ``out``; bytes must also be contiguous.

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
        dtype = (_NAMES.get(view.dtype) or view.dtype.name) if host else str(view.dtype).removeprefix("torch.")
        gapless = "uint8" not in dtypes or (view.flags.c_contiguous if host else view.is_contiguous())
        if dtype in dtypes and view.ndim == 1 and gapless and (not host or view.flags.writeable):
            return view
    wanted = f"1-D, writable, {'contiguous, ' if 'uint8' in dtypes else ''}{' or '.join(dtypes)}"
    raise ValueError(f"out is {_described(out)}; give a NumPy array or a tensor: {wanted}, on the device of what is read")


def _described(out: Any) -> str:
    """Describe an argument for an error."""
    if not isinstance(out, np.ndarray) and not is_tensor(out):
        return f"of type {type(out).__name__}"
    where = f"on {out.device}" if is_tensor(out) else "" if out.flags.writeable else "read-only"
    strides = out.strides if isinstance(out, np.ndarray) else out.stride() if out.layout == _torch().strided else out.layout
    return f"{out.dtype} of shape {tuple(out.shape)}, strides {strides} {where}".rstrip()


def _torch() -> Any:
    import torch

    return torch


_NAMES = {np.dtype(name): name for name in ("uint8", "float32")}  # dtype.name is built again at each call
