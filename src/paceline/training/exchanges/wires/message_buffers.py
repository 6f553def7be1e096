"""Memory for messages, which later chunks use again, so that later steps allocate none.

On a GPU torch's caching allocator does this, in the order of the streams; there every buffer is a new tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_CPU = torch.device("cpu")
_ALIGNED = 64  # bytes: a cache line


class Buffers:
    """Memory of one chunk in flight, where ``take`` returns bytes that have no other user until ``reuse``."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def take(self, count: int, device: torch.device = _CPU) -> torch.Tensor:
        """Return ``count`` bytes of any content, (count,), uint8, aligned to a cache line."""
        if device.type != "cpu":
            return torch.empty(count, dtype=torch.uint8, device=device)
        start = self._used
        self._used += -(-count // _ALIGNED) * _ALIGNED
        if self._used > self._block.numel():
            return torch.empty(count, dtype=torch.uint8)  # ``reuse`` makes room for the next time
        return self._block[start : start + count]

    def floats(self, count: int, device: torch.device = _CPU) -> torch.Tensor:
        """Return ``count`` fp32 elements of any content, (count,)."""
        return self.take(4 * count, device).view(torch.float32)

    def reuse(self) -> None:
        """Release all buffers, when no send and no other code reads them any more."""
        if self._used > self._block.numel():
            self._block = torch.empty(self._used, dtype=torch.uint8)
        self._used = 0


class _Fresh(Buffers):
    """Allocator of a new buffer for each request."""

    def take(self, count: int, device: torch.device = _CPU) -> torch.Tensor:
        return torch.empty(count, dtype=torch.uint8, device=device)


FRESH: Buffers = _Fresh()
"""For who sends once."""


class BufferPool:
    """Buffers of a wire, one for each chunk that was in flight at the same time.

    One thread uses a pool. The idle buffers of the lowest number are lent first. So equal exchanges lend the same buffers, and
    every buffer soon has its final size.
    """

    def __init__(self) -> None:
        self._idle: list[tuple[int, Buffers]] = []
        self._made = 0

    @contextmanager
    def lent(self) -> Iterator[Buffers]:
        """Lend buffers for the block. After an error they are not lent again, because a send may still read them."""
        if not self._idle:
            self._idle.append((self._made, Buffers()))
            self._made += 1
        number, buffers = self._idle.pop(0)
        yield buffers
        buffers.reuse()
        self._idle.append((number, buffers))
        self._idle.sort(key=lambda pair: pair[0])
