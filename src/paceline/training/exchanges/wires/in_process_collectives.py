"""Wires between N ranks in one process, for studies and tests: exchanges between threads, without an engine.

Everything above the wire is the real code. One rank runs at a time and yields only when it waits for the others, so a run
takes one core and its results depend on no timing. Sums of numbers are taken in rank order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from paceline.strategy import ring_bytes
from paceline.training.exchanges.wires.collectives import Pending, Wire
from paceline.training.exchanges.wires.message_buffers import FRESH, BufferPool, Buffers
from paceline.training.exchanges.wires.meter import Meter

T = TypeVar("T")


class LocalGroup:
    """Ranks of one process, and the collectives in flight between them."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._turn = threading.Lock()  # held by the rank that runs
        self._meetings: dict[int, _Meeting] = {}
        self._failure: BaseException | None = None

    def run(self, work: Callable[[LocalWire], T]) -> list[T]:
        """Return ``[work(wire) for every rank]``, with each rank in a separate thread.

        Raises:
            Exception: the error of the first rank to fail; the others end while they wait.
        """
        results: list[Any] = [None] * self.world_size
        self._meetings, self._failure = {}, None

        def rank(number: int) -> None:
            with self._turn:
                try:
                    results[number] = work(LocalWire(self, number))
                except BaseException as error:
                    self._failure = self._failure or error
                    for meeting in self._meetings.values():
                        meeting.full.set()

        threads = [threading.Thread(target=rank, args=(n,), name=f"rank-{n}", daemon=True) for n in range(self.world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        return results

    def join(self, number: int, kind: str, rank: int, brought: Any, combine: Callable[[list[Any]], Any]) -> _Meeting:
        """Add ``rank``'s part to its collective ``number``; the last rank combines all parts, in rank order."""
        meeting = self._meetings.setdefault(number, _Meeting(self, kind))
        if meeting.kind != kind:
            raise RuntimeError(f"rank {rank} calls {kind} where another rank called {meeting.kind}")
        meeting.parts[rank] = brought
        if len(meeting.parts) == self.world_size:
            del self._meetings[number]
            meeting.outcome = combine([meeting.parts[r] for r in range(self.world_size)])
            meeting.full.set()
        return meeting

    def give_way(self, until: threading.Event) -> None:
        """Let other ranks run until the event occurs. Raises RuntimeError if one of them has failed."""
        if not until.is_set() and self._failure is None:
            self._turn.release()
            until.wait()
            self._turn.acquire()
        if self._failure is not None:
            raise RuntimeError(f"another rank failed: {self._failure}")


class _Meeting:
    """Collective in flight, for which ``Pending`` waits."""

    def __init__(self, group: LocalGroup, kind: str) -> None:
        self.kind, self._group = kind, group
        self.parts: dict[int, Any] = {}
        self.full = threading.Event()
        self.outcome: Any = None

    def wait(self) -> None:
        self._group.give_way(self.full)


class LocalWire(Wire):
    """Wire of one rank in a ``LocalGroup``. Bytes are counted as ``Wire`` counts them; ``hierarchical`` needs real groups."""

    def __init__(self, group: LocalGroup, rank: int) -> None:
        self.local, self.rank, self.world_size = group, rank, group.world_size
        self.device, self.meter, self.timeout_s = torch.device("cpu"), Meter(rank), 0.0
        self.pool = BufferPool()
        self._calls = 0

    @property
    def calls(self) -> int:
        """Number of collectives that this rank has called."""
        return self._calls

    def job_rank(self, rank: int) -> int:
        """Return a rank's number in the job; see ``Wire``."""
        return rank

    def _meet(
        self, kind: str, name: str, part: Any, combine: Callable[[list[Any]], Any], result: Callable[[Any], T]
    ) -> Pending[T]:
        self._calls += 1  # every rank makes the same calls in the same order, as with a process group
        meeting = self.local.join(self._calls, f"{kind} {name}", self.rank, part, combine)
        return Pending(self, name, [meeting], lambda: result(meeting.outcome))

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, name: str = "allreduce") -> Pending[torch.Tensor]:
        """Reduce in place by SUM or MAX; see ``Wire``."""
        self.meter.sent_bytes += ring_bytes(tensor.nbytes, self.world_size)
        combine = _largest if op == dist.ReduceOp.MAX else _sum
        return self._meet("all_reduce", name, tensor, combine, tensor.copy_)

    def note(self, numbers: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Sum statistics over the ranks; see ``Wire``."""
        self.meter.bookkeeping_bytes += ring_bytes(numbers.nbytes, self.world_size)
        return self._meet("note", "statistics", numbers, _sum, numbers.copy_).wait

    def all_to_all(
        self, outgoing: Sequence[torch.Tensor], expected: Sequence[int], name: str, buffers: Buffers = FRESH, most: int = 0
    ) -> Pending[Sequence[torch.Tensor]]:
        """Send a message to each rank; see ``Wire``."""
        self.meter.sent_bytes += sum(m.numel() for m in outgoing)

        def mine(everyone: list[Sequence[torch.Tensor]]) -> Sequence[torch.Tensor]:
            return [_checked(sent[self.rank], size, name) for sent, size in zip(everyone, expected, strict=True)]

        return self._meet("all_to_all", name, list(outgoing), _copies_of_lists, mine)

    def shift(
        self, message: torch.Tensor, expected: int, name: str, buffers: Buffers = FRESH, most: int = 0
    ) -> Pending[torch.Tensor]:
        """Send a message to the right neighbour; see ``Wire``."""
        self.meter.sent_bytes += message.numel()
        left = (self.rank - 1) % self.world_size
        return self._meet("shift", name, message, _copies, lambda everyone: _checked(everyone[left], expected, name))

    def reduce_scatter(
        self, out: torch.Tensor, data: torch.Tensor, name: str, buffers: Buffers = FRESH
    ) -> Pending[torch.Tensor]:
        """Write this rank's part of the sum; see ``Wire``."""
        self.meter.sent_bytes += data.nbytes - out.nbytes
        wide = data if data.element_size() >= 4 else data.float()
        return self._meet("reduce_scatter", name, wide, _sum, lambda total: out.copy_(total.chunk(self.world_size)[self.rank]))

    def all_gather(self, out: torch.Tensor, data: torch.Tensor, name: str) -> Pending[torch.Tensor]:
        """Write the data of all ranks; see ``Wire``."""
        self.meter.sent_bytes += out.nbytes - data.nbytes
        return self._meet("all_gather", name, data, torch.cat, out.copy_)


def _sum(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def _copies(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copy messages as a network does, so that a sender may use its buffers again."""
    return [part.clone() for part in parts]


def _copies_of_lists(parts: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    return [_copies(part) for part in parts]


def _largest(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(parts).amax(0)


def _checked(message: torch.Tensor, expected: int, name: str) -> torch.Tensor:
    if message.numel() != expected:
        raise RuntimeError(f"{name}: {message.numel()} bytes came, {expected} were expected")
    return message
