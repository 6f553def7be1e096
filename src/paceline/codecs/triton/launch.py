"""Common parts of kernel launches: the state that kernels report to, aligned memory, arguments of one type."""

from __future__ import annotations

from typing import Any

import torch

from paceline.codecs import counter

TILE = 2048
"""Elements of one program of an element-wise kernel: a multiple of a bit plane's 64."""

GATE, REFUSED, WRITTEN = 0, 1, 2
"""The three int64 words of a state: 1 keeps a decoder from writing, 1 says that the data has no form, bytes of a body."""

_WORD = 1 << 32
_ALIGNED = 16


def run(kernel: Any, programs: int, *arguments: Any, **meta: Any) -> None:
    """Queue ``kernel`` on ``programs`` programs, if any.

    By default Triton fuses ``a * b + c`` into one rounding, but the wire format requires two. So every kernel here must be
    launched by this function.
    """
    if programs:
        kernel[(programs,)](*arguments, **meta, enable_fp_fusion=False)


def tiles(count: int, size: int = TILE) -> int:
    """Return the number of programs for ``count`` elements."""
    return -(-count // size)


def state(like: torch.Tensor) -> torch.Tensor:
    """Allocate a state on the device of ``like``, with an open gate and no refusal."""
    return torch.zeros(3, dtype=torch.int64, device=like.device)


def aligned(memory: torch.Tensor) -> torch.Tensor:
    """Return ``memory`` (uint8), or new memory of its size if its address is no multiple of 16: a GPU faults on unaligned
    words."""
    return memory if memory.data_ptr() % _ALIGNED == 0 else torch.empty_like(memory, memory_format=torch.contiguous_format)


def signed(word: int) -> int:
    """Return a 32-bit word as the int32 of equal bits."""
    return (word & (_WORD - 1) ^ 1 << 31) - (1 << 31)


def draws(key: counter.Key, start: int, count: int) -> tuple[int, int, int, int]:
    """Return the arguments of ``device_functions.uniform24``: the key for indices up to the next multiple of 2**32, the next
    key, the index.

    Raises:
        ValueError: more than 2**32 elements, which may cross two such multiples.
    """
    if count > _WORD:
        raise ValueError(f"{count} elements at once; the GPU's draws are for up to 2**32: encode in parts")
    highs = (counter.second_word(key, start), counter.second_word(key, start + _WORD))
    return signed(key.low), signed(highs[0]), signed(highs[1]), start % _WORD
