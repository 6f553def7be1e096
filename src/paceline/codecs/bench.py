"""Measurement of codec speeds on this machine, relative to a plain copy of the same memory in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.array_types import F32
from paceline.codecs import arrays, backends, counter, native
from paceline.codecs.api import decode, encode, get, max_payload_bytes, names
from paceline.codecs.codec import ADD, Codec
from paceline.codecs.threads import chosen, set_threads, threads
from paceline.errors import UserError
from paceline.hardware.probe import memory_bytes
from paceline.units import format_bytes

DIRECTIONS = ("encode", "decode", "decode_add")
REPETITIONS, LEAST_REPETITIONS = 15, 3
BUDGET_S = 4.0
"""Time limit of a codec's repetitions: slower codecs get fewer, at least the least number."""
COPIES = 4
"""Arrays of at least the tensor's size: values, decoded values, payload and copy."""


@dataclass(frozen=True, kw_only=True)
class CodecSpeed:
    """Speed of one codec in one direction: the whole public call, header and checksum included.

    Attributes:
        backend: implementation that ran: ``reference``, ``triton``, or ``native`` with instructions, as in ``native avx512``.
        threads: threads that the codec used; 1 for the reference and a GPU.
        memcpy_threads: threads that copied; 1 if a GPU copied within its own memory.
        elements: fp32 values in the tensor.
        ratio: fp32 bytes / payload bytes, header included.
        repetitions: timed calls, after one that warms up.
        gb_per_s: 10**9 bytes of fp32 a second, from the median time; ``low`` and ``high`` from the 90th and 10th percentile.
        memcpy_gb_per_s: as many bytes copied by as many threads, between the same repetitions.
        relative_to_memcpy: per core.
    """

    codec: str
    direction: str
    backend: str
    threads: int
    elements: int
    ratio: float
    repetitions: int
    gb_per_s: float
    low_gb_per_s: float
    high_gb_per_s: float
    gb_per_s_per_core: float
    memcpy_threads: int
    memcpy_gb_per_s: float
    memcpy_gb_per_s_per_core: float
    relative_to_memcpy: float


def measure(
    elements: int,
    which: Iterable[str] | None = None,
    count: int | None = None,
    backend: str = "",
    repetitions: int = REPETITIONS,
) -> list[CodecSpeed]:
    """Measure every named codec (None: all) with its default parameters, in every direction.

    Args:
        elements: fp32 values in the tensor.
        count: threads; by default ``codecs.threads()``.
        backend: as for ``api.encode``.

    Raises:
        UserError: an unknown codec or backend, fewer than one thread, more elements than the machine's memory holds.
    """
    todo = [get(name) for name in (names() if which is None else which)]
    for codec in todo:
        backends.check(codec, backend)
    needed, has = 4 * COPIES * elements, memory_bytes()
    if needed > has:
        size = format_bytes(4 * elements) if elements < 2**60 else f"{elements:.2g} values"
        raise UserError(
            f"a tensor of {size} does not fit: the benchmark needs {COPIES} times that, this machine has {format_bytes(has)}",
            f"give at most {format_bytes(has / COPIES).replace(' ', '')}",
        )
    before = chosen()
    try:
        set_threads(count if count is not None else threads())
        x: Any = gradient(elements)
        out: Any = np.empty_like(x)
        if backend == "triton":
            import torch

            x, out = torch.from_numpy(x).cuda(), torch.from_numpy(out).cuda()
        return [speed for codec in todo for speed in _codec(codec, x, out, backend, repetitions)]
    finally:
        set_threads(before)


def gradient(elements: int, seed: int = 0) -> F32:
    """Generate values distributed as gradients are: around zero, over several orders of magnitude, from a seed."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(elements, dtype=np.float32)
    magnitude = rng.standard_normal(elements, dtype=np.float32)
    np.exp(magnitude, out=magnitude)
    x *= magnitude
    x *= np.float32(1e-3)
    return x


def _codec(codec: Codec, x: Any, out: Any, backend: str, repetitions: int) -> list[CodecSpeed]:
    elements = len(x)
    room = arrays.empty_bytes(x, max_payload_bytes(codec, elements))
    payload = encode(codec, x, out=room, backend=backend)
    calls: dict[str, Callable[[], Any]] = {
        "memcpy": _copier(x, out),
        "encode": lambda: encode(codec, x, out=room, backend=backend),
        "decode": lambda: decode(payload, out, backend=backend),
        "decode_add": lambda: decode(payload, out, ADD, backend=backend),
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    began = time.perf_counter()
    for repetition in range(repetitions + 1):
        # In turn, so that a neighbour on the machine slows the copy as much as the codec.
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            _finish(x)
            if repetition:  # the first warms up
                taken[name].append(time.perf_counter() - start)
        if repetition >= LEAST_REPETITIONS and time.perf_counter() - began > BUDGET_S:
            break
    chosen_backend = backends.pick(codec, x, backend).name
    used = threads() if chosen_backend == "native" else 1
    label = f"native {native.isa()}" if chosen_backend == "native" else chosen_backend
    copiers = threads() if native.available() and chosen_backend != "triton" else 1
    copied = _rates(taken["memcpy"], x.nbytes)[1]
    return [
        CodecSpeed(
            codec=codec.name,
            direction=direction,
            backend=label,
            threads=used,
            elements=elements,
            ratio=x.nbytes / len(payload),
            repetitions=len(taken[direction]),
            gb_per_s=median,
            low_gb_per_s=low,
            high_gb_per_s=high,
            gb_per_s_per_core=median / used,
            memcpy_threads=copiers,
            memcpy_gb_per_s=copied,
            memcpy_gb_per_s_per_core=copied / copiers,
            relative_to_memcpy=(median / used) / (copied / copiers),
        )
        for direction in DIRECTIONS
        for low, median, high in [_rates(taken[direction], x.nbytes)]
    ]


def _finish(x: Any) -> None:
    """Wait for queued GPU work."""
    if arrays.is_tensor(x):
        import torch

        torch.cuda.synchronize(x.device)


def _copier(x: Any, out: Any) -> Callable[[], Any]:
    """Copy ``x`` into ``out`` with as many threads as the codec uses, or on the GPU."""
    if arrays.is_tensor(x):
        return lambda: out.copy_(x)
    if not native.available():
        return lambda: np.copyto(out, x)
    copy, to = get("fp32"), out.view(np.uint8)
    key = counter.key(0, 0)
    return lambda: native.encode(copy, x, to, key, 0)


def _rates(seconds: Sequence[float], size: int) -> tuple[float, float, float]:
    """Return GB/s at the 90th percentile, the median and the 10th percentile of the time."""
    slow, fast = (float(np.percentile(seconds, q)) for q in (90, 10))
    low, median, high = (size / 1e9 / t for t in (slow, statistics.median(seconds), fast))
    return low, median, high
