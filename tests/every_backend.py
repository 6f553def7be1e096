"""Every implementation of a codec's kernels that runs here, and arrays that end where memory ends."""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from paceline.codecs import SET, counter, native, reference

ISAS = ("baseline", "neon") if platform.machine() in ("aarch64", "arm64") else ("baseline", "avx2", "avx512")
"""Of this kind of processor; ``_native.isas()`` has those of this very one, lowest first."""
IN_USE = native.isa() if native.available() else ISAS[0]
"""The instruction set whose cases run every day."""


def labels() -> list[str]:
    """``reference``, and one for each instruction set of this machine where the extension is built."""
    if not native.available():
        return ["reference"]
    from paceline import _native

    return ["reference", *(f"native-{isa}" for isa in _native.isas())]


def drawn(draws: Mapping[str, int]) -> dict[str, Any]:
    """The arguments of ``encode`` for seed, step, rank and start, as the golden vectors name them."""
    key = counter.key(draws.get("seed", 0), draws.get("step", 0), draws.get("rank", 0))
    return {"key": key, "start": draws.get("start", 0)}


@contextmanager
def kernels(label: str) -> Iterator[Any]:
    """The backend of that label; its instruction set stays in use inside the block."""
    if label == "reference":
        yield reference
        return
    from paceline import _native

    before = _native.isa()
    _native.set_isa(label.partition("-")[2])
    try:
        yield native
    finally:
        _native.set_isa(before)


def encoded(label: str, codec: Any, x: np.ndarray) -> bytes:
    """The body of ``x``, written into exactly the room that the codec asks for, in front of memory that traps."""
    room = Guarded(codec.body_range(x.size)[1])
    source = Guarded(4 * x.size)
    source.array.view(np.float32)[:] = x
    with kernels(label) as k:
        written = k.encode(codec, source.array.view(np.float32), room.array, counter.key(0, 0), 0)
    return room.array[:written].tobytes()


def decoded(label: str, codec: Any, body: bytes, count: int, mode: int = SET, out: np.ndarray | None = None) -> np.ndarray:
    """The values of a body, with memory that traps behind the body and behind the values."""
    source, target = Guarded(len(body)), Guarded(4 * count)
    source.array[:] = np.frombuffer(body, np.uint8)
    values = target.array.view(np.float32)
    values[:] = 7 if out is None else out
    with kernels(label) as k:
        k.decode(codec, source.array, values, mode)
    return values.copy()


class Guarded:
    """``size`` bytes whose next byte cannot be read or written: touching it ends the process."""

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        pages = -(-size // page)
        self._map = mmap.mmap(-1, (pages + 1) * page)
        whole = np.frombuffer(self._map, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        if libc.mprotect(whole.ctypes.data + pages * page, page, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
        self.array = whole[pages * page - size : pages * page]
