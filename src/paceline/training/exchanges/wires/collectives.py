"""Asynchronous collectives over a process group, which are counted and timed.

``torch.distributed`` does all transport. A collective returns at once; ``Pending.wait`` returns the received data.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from paceline.codecs import PayloadError, decode, deferred
from paceline.codecs.container import HEADER_BYTES
from paceline.errors import LostRank, UserError
from paceline.strategy import ring_bytes
from paceline.training.exchanges.wires.joined_calls import SIZES, Joint
from paceline.training.exchanges.wires.message_buffers import FRESH, BufferPool, Buffers
from paceline.training.exchanges.wires.meter import Meter

T = TypeVar("T")
CollectiveSteps = Generator["Pending[Any]", Any, T]
"""A generator that yields every collective it waits for, receives the arrived data, and returns a T."""

NOTHING = torch.empty(0, dtype=torch.uint8)
# As PyTorch 2.13 and later calls them, and as earlier ones do.
ALL_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
REDUCE_SCATTER = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"


class WireError(LostRank):
    """Error of a collective: a peer or its link is lost, or the timeout has passed. The lost rank is not yet known."""


@contextmanager
def collective() -> Iterator[None]:
    """Turn the engine's RuntimeError into a WireError around the launch of a collective or the wait for it."""
    try:
        yield
    except RuntimeError as error:
        raise WireError(str(error)) from error


@dataclass
class Soundness:
    """Record whether every exchange over some wires has succeeded, so that no message is outstanding."""

    sound: bool = True
    _wires: tuple[weakref.ref[Wire], ...] = ()

    @property
    def groups(self) -> list[dist.ProcessGroup]:
        """Groups of the wires that still exist."""
        wires = (reference() for reference in self._wires)
        return list({id(wire.group): wire.group for wire in wires if wire is not None}.values())

    def cover(self, wire: Wire) -> None:
        """Add a wire that fails together with the others."""
        self._wires = (*(reference for reference in self._wires if reference() is not None), weakref.ref(wire))


class Pending(Generic[T]):
    """A collective in flight."""

    def __init__(self, wire: Wire, name: str, works: Sequence[Any], result: Callable[[], T], sent: Any = None) -> None:
        self._wire, self._name, self._works, self._result = wire, name, works, result
        self._sent = sent  # kept alive: the engine reads it until the work is done
        self._start = wire.meter.now()

    def wait(self) -> T:
        """Return the received data. Raises WireError if a peer is lost or the timeout has passed."""
        with collective():
            for work in self._works:
                work.wait()
        self._wire.meter.add(self._name, "network", self._start)
        return self._result()


class Wire:
    """Collectives over one process group. The meter counts every byte that leaves this rank.

    Attributes:
        pool: memory for messages. A call uses its part of ``buffers`` until its ``Pending`` was waited for.
        joint: collection of what is sent next, within ``joined_calls.joined``.
    """

    joint: Joint | None = None

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device,
        meter: Meter,
        timeout_s: float = 300,
        soundness: Soundness | None = None,
    ) -> None:
        self.group, self.device, self.meter, self.timeout_s = group, device, meter, timeout_s
        self.soundness = soundness or Soundness()
        self.soundness.cover(self)
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.pool = BufferPool()
        self._ranks = dist.get_process_group_ranks(group)
        self._tag = 0

    @property
    def joins(self) -> bool:
        """True if messages of all chunks of an exchange share calls, as on a GPU; on CPUs, chunks overlap with the codec."""
        return self.device.type != "cpu"

    @property
    def exact(self) -> Wire:
        """Wire of the same ranks that no network card compresses."""
        return self

    def job_rank(self, rank: int) -> int:
        """Rank in the whole job of a rank of this group."""
        return self._ranks[rank]

    def through_switch(
        self, message: torch.Tensor, expected: int, name: str, buffers: Buffers = FRESH
    ) -> Pending[torch.Tensor]:
        """Send a message to a switch that adds; available only in a ``SwitchWire``."""
        raise UserError("no switch adds here", "paceline lab up --switch, then paceline lab exec")

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, name: str = "allreduce") -> Pending[torch.Tensor]:
        """Reduce in place. The bytes count as those of a ring, the engine's algorithm: 2 (N-1)/N of the buffer."""
        self.meter.sent_bytes += ring_bytes(tensor.nbytes, self.world_size)
        with collective():
            work = dist.all_reduce(tensor, op=op, group=self.group, async_op=True)
        return Pending(self, name, [work], lambda: tensor)

    def note(self, numbers: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Sum statistics of a step over the ranks, in place. Returns a function that waits for the sum.

        These bytes are not part of the step: they count as ``meter.bookkeeping_bytes``. No event is recorded, since the sum may
            end in a later step.
        """
        self.meter.bookkeeping_bytes += ring_bytes(numbers.nbytes, self.world_size)
        with collective():
            work = dist.all_reduce(numbers, group=self.group, async_op=True)

        def arrived() -> torch.Tensor:
            with collective():
                work.wait()
            return numbers

        return arrived

    def all_to_all(
        self, outgoing: Sequence[torch.Tensor], expected: Sequence[int], name: str, buffers: Buffers = FRESH, most: int = 0
    ) -> Pending[Sequence[torch.Tensor]]:
        """Send ``outgoing[j]`` (uint8) to rank j. Returns each rank's message, of ``expected`` bytes; this rank's own is empty.

        ``most`` is an upper bound of all received messages if ``expected`` changes from step to step.
        """
        device = next((m.device for m in outgoing if m.numel()), self.device)
        received = buffers.take(max(most, sum(expected)), self.device)[: sum(expected)]
        parts = received.split(list(expected))
        if dist.get_backend(self.group) == dist.Backend.NCCL:
            works, data = self._all_at_once(self._here(outgoing), parts)
        else:
            works, data = self._swap(dict(enumerate(self._here(outgoing))), dict(enumerate(parts)))
        moved = received.device != device
        return Pending(self, name, works, lambda: received.to(device).split(list(expected)) if moved else parts, data)

    def _here(self, messages: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return messages on the wire's device, with one copy for all that are elsewhere."""
        sizes = [0 if message.device == self.device else message.numel() for message in messages]
        if not any(sizes):
            return messages
        moved = torch.cat([m for m, size in zip(messages, sizes, strict=True) if size]).to(self.device).split(sizes)
        return [there if size else m for m, there, size in zip(messages, moved, sizes, strict=True)]

    def _all_at_once(self, out: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> tuple[Sequence[Any], Any]:
        """Send rank j ``out[j]`` and fill ``into[j]`` with one call of the engine, in which all ranks take part."""
        self.meter.sent_bytes += sum(message.numel() for message in out)
        data = [message if message.numel() else into[0][:0] for message in out]  # empty ones may be elsewhere
        with collective():
            return [dist.all_to_all(list(into), data, group=self.group, async_op=True)], data

    def shift(
        self, message: torch.Tensor, expected: int, name: str, buffers: Buffers = FRESH, most: int = 0
    ) -> Pending[torch.Tensor]:
        """Send ``message`` (uint8) to the right neighbour. Returns that of the left one, of ``expected`` bytes.

        ``most`` as in ``all_to_all``.
        """
        received = buffers.take(max(most, expected), self.device)[:expected]
        right, left = ((self.rank + step) % self.world_size for step in (1, -1))
        works, data = self._swap({right: message}, {left: received})
        return Pending(self, name, works, lambda: received.to(message.device), data)

    def _swap(self, out: Mapping[int, torch.Tensor], into: Mapping[int, torch.Tensor]) -> tuple[Sequence[Any], Any]:
        """Send each rank of ``out`` its bytes, and fill ``into`` with the bytes of its ranks. Empty messages are not sent.

        Receives are posted first. Gloo's sender waits until the peer announces its receive, on the connection that also carries
        this rank's own messages. Behind such a message the announcement would wait, and the link carry one direction at a time.
        """
        self._tag += 1  # the same on every rank, so that concurrent messages do not mix
        data = {rank: message.to(self.device) for rank, message in out.items() if message.numel()}
        self.meter.sent_bytes += sum(message.numel() for message in data.values())
        wanted = {rank: buffer for rank, buffer in into.items() if buffer.numel()}
        operations = [
            dist.P2POp(what, tensor, self._ranks[rank], self.group, self._tag)
            for what, buffers in ((dist.irecv, wanted), (dist.isend, data))
            for rank, tensor in buffers.items()
        ]
        with collective():
            return (dist.batch_isend_irecv(operations) if operations else []), data

    def reduce_scatter(
        self, out: torch.Tensor, data: torch.Tensor, name: str, buffers: Buffers = FRESH
    ) -> Pending[torch.Tensor]:
        """Write the sum over the ranks of this rank's equal part of ``data`` into ``out``.

        On CPUs each part is sent directly to its owner, which adds in rank order, 16-bit numbers in fp32. Gloo's own
        reduce-scatter is an all-reduce: twice the bytes.
        """
        if self.device.type == "cpu":
            return self._add_at_owners(out, data, name, buffers)
        self.meter.sent_bytes += data.nbytes - out.nbytes
        with collective():
            work = getattr(dist, REDUCE_SCATTER)(out, data, group=self.group, async_op=True)
        return Pending(self, name, [work], lambda: out)

    def _add_at_owners(self, out: torch.Tensor, data: torch.Tensor, name: str, buffers: Buffers) -> Pending[torch.Tensor]:
        own = data.view(self.world_size, -1)
        arrived = buffers.take(data.nbytes).view(data.dtype).view(own.shape)
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        out_bytes, in_bytes = own.view(torch.uint8), arrived.view(torch.uint8)
        works, sent = self._swap({rank: out_bytes[rank] for rank in others}, {rank: in_bytes[rank] for rank in others})

        def total() -> torch.Tensor:
            first, *rest = (own[rank] if rank == self.rank else arrived[rank] for rank in range(self.world_size))
            wide = out.view(-1) if out.element_size() >= 4 else buffers.floats(out.numel())
            wide.copy_(first)
            for part in rest:
                wide.add_(part)
            return out if out.element_size() >= 4 else out.copy_(wide.view(out.shape))

        return Pending(self, name, works, total, sent)

    def all_gather(self, out: torch.Tensor, data: torch.Tensor, name: str) -> Pending[torch.Tensor]:
        """Write the ``data`` of all ranks, of equal size, in rank order into ``out``."""
        self.meter.sent_bytes += out.nbytes - data.nbytes
        with collective():
            work = getattr(dist, ALL_GATHER)(out, data, group=self.group, async_op=True)
        return Pending(self, name, [work], lambda: out)

    # If only the sender knows a message's length, it announces it first. The receiver checks it before it allocates memory.

    def deliver(
        self,
        outgoing: Sequence[torch.Tensor],
        expected: Sequence[int | None],
        elements: Sequence[int],
        name: str,
        buffers: Buffers = FRESH,
    ) -> CollectiveSteps[Sequence[torch.Tensor]]:
        """Run ``all_to_all`` with lengths that may be unknown (None).

        Args:
            elements: number of elements in the message of each rank.
            buffers: memory for received messages.

        Raises:
            PayloadError: a rank announces a message that is too long for its elements.
        """
        most = 0
        if any(size is None for size in expected):
            others = [rank != self.rank for rank in range(self.world_size)]
            announced = [_length(m, buffers) if other else NOTHING for m, other in zip(outgoing, others, strict=True)]
            lengths = yield self._all_to_all(announced, [8 * other for other in others], SIZES, buffers, 0)
            expected = [
                _announced(m, elements[rank], self.job_rank(rank)) if m.numel() else 0 for rank, m in enumerate(lengths)
            ]
            most = sum(_largest_message(count) for count, other in zip(elements, others, strict=True) if other)
        sizes = [size or 0 for size in expected]
        arrived: Sequence[torch.Tensor] = yield self._all_to_all(outgoing, sizes, name, buffers, most)
        return arrived

    def pass_on(
        self, message: torch.Tensor, expected: int | None, elements: int, name: str, buffers: Buffers = FRESH
    ) -> CollectiveSteps[torch.Tensor]:
        """Run ``shift`` with a length that may be unknown (None)."""
        most = 0
        if expected is None:
            announced = yield self._shift(_length(message, buffers), 8, SIZES, buffers, 0)
            expected = _announced(announced, elements, self.job_rank((self.rank - 1) % self.world_size))
            most = _largest_message(elements)
        arrived: torch.Tensor = yield self._shift(message, expected, name, buffers, most)
        return arrived

    def _all_to_all(
        self, outgoing: Sequence[torch.Tensor], expected: Sequence[int], name: str, buffers: Buffers, most: int
    ) -> Any:
        """Run ``all_to_all`` now, or together with that of other chunks."""
        if self.joint is not None:
            return self.joint.all_to_all(outgoing, expected, name)
        return self.all_to_all(outgoing, expected, name, buffers, most)

    def _shift(self, message: torch.Tensor, expected: int, name: str, buffers: Buffers, most: int) -> Any:
        """Run ``shift`` now, or together with that of other chunks."""
        if self.joint is not None:
            return self.joint.shift(message, expected, name)
        return self.shift(message, expected, name, buffers, most)


def sent_by(wire: Wire, rank: int) -> AbstractContextManager[None]:
    """Name the sender in the PayloadError of a damaged message; in a ring it is the left neighbour."""
    return sent_by_rank(wire.job_rank(rank))


@contextmanager
def sent_by_rank(job_rank: int) -> Iterator[None]:
    """Name a rank by its number in the whole job, as ``sent_by`` does."""
    try:
        with deferred.naming(lambda _: f"a message of rank {job_rank}"):
            yield
    except PayloadError as error:
        raise PayloadError(f"a message of rank {job_rank}: {error}") from error


@contextmanager
def sent_by_one_of(wire: Wire, messages: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Name the sender of a damaged message as ``sent_by`` does, if several messages are read at once."""

    def name(message: torch.Tensor) -> str:
        return next((f"a message of rank {wire.job_rank(rank)}" for rank, m in messages.items() if m is message), "a message")

    try:
        with deferred.naming(name):
            yield
    except PayloadError as error:
        for rank, message in messages.items():
            if message.numel() and not _is_intact(message):
                raise PayloadError(f"a message of rank {wire.job_rank(rank)}: {error}") from error
        raise


def _is_intact(message: torch.Tensor) -> bool:
    try:
        decode(message)
    except PayloadError:
        return False
    return True


def _announced(message: torch.Tensor, elements: int, rank: int) -> int:
    """Return the announced length, if it is possible."""
    length, most = int(message.numpy().view(np.int64)[0]), _largest_message(elements)
    if not 0 <= length <= most:
        raise PayloadError(f"rank {rank} announces a message of {length} bytes; its {elements} elements take {most} at most")
    return length


def _largest_message(elements: int) -> int:
    """Return the largest bytes of a message of this many elements, which are those of fp32."""
    return HEADER_BYTES + 4 * elements if elements else 0


def _length(message: torch.Tensor, buffers: Buffers) -> torch.Tensor:
    announced = buffers.take(8)
    announced.view(torch.int64).fill_(message.numel())
    return announced
