"""Thread that runs a model's exchanges in order, in parallel with the backward pass."""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from paceline.training.attach import daemon_threads as daemons
from paceline.training.attach.exchange_watch import Flight, Watch, abort
from paceline.training.attach.liveness import Roll
from paceline.training.device_stream import DeviceStream, Future, allocating_on, has_streams, promise, refuse_capture
from paceline.training.exchanges.wires.collectives import Wire, WireError

_log = logging.getLogger("paceline")

__all__ = ["Background", "Exchanges", "Future", "Task", "Waiting", "promise"]

Task = Callable[[], None]
Waiting = tuple[torch.Tensor, Future]
"""A bucket's buffer, and the future that DDP waits for."""


class Background:
    """Thread that runs tasks one after another until its owner is deleted.

    The thread knows only its queue, so a deleted model frees its hook and its buffers.
    """

    def __init__(self, owner: object, name: str) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        daemons.start(owner, _serve, (self._tasks,), name, partial(self._tasks.put, None))

    def submit(self, task: Task) -> None:
        """Run ``task`` after all earlier tasks."""
        self._tasks.put(task)


class ExchangeQueue:
    """Thread and stream that run exchanges in the order in which they were submitted.

    All hooks of a GPU share one queue. NCCL needs one order of launches on all ranks, over all communicators of a device, and
    a thread for each hook would give each rank another.
    """

    _made: ClassVar[weakref.WeakValueDictionary[torch.device, ExchangeQueue]] = weakref.WeakValueDictionary()

    def __init__(self, device: torch.device) -> None:
        self.stream, self.watch = DeviceStream.of(device), Watch()
        self._work = Background(self, "paceline-exchange")

    @classmethod
    def of(cls, device: torch.device) -> ExchangeQueue:
        """Return the queue of a GPU; on a CPU a new one."""
        if not has_streams(device):
            return cls(device)
        found = cls._made.get(device)
        if found is None:
            found = cls._made[device] = cls(device)
        return found

    def submit(self, task: Task) -> None:
        """Run ``task`` after all earlier tasks."""
        self._work.submit(task)


class Exchanges:
    """Exchanges in the background, in an order that all ranks share. After one fails, all later ones fail.

    A future always gets its buffer, because DDP turns any error of a future into a RuntimeError. ``after_backward`` raises the
    error with its own type.

    Args:
        wire: wire of the exchanges. If one does not end in time, the groups of all wires that fail together are aborted.
        watched: the ranks of which a lost one is named, all of which make this at the same time; by default those of ``wire``.
        wires: further wires of the exchanges, which fail together with ``wire``.
        holds: keep exchanges of a step until its last one, so that collectives of the backward pass are launched before them.

    Attributes:
        on_stream: True if exchanges are queued on a GPU's stream, and False on a CPU, which has done them when a call returns.
    """

    def __init__(
        self,
        wire: Wire,
        watched: dist.ProcessGroup | None = None,
        wires: Iterable[Wire] = (),
        holds: bool = False,
    ) -> None:
        self._rank, self._ranks, self._device, self._timeout_s = wire.rank, wire.world_size, wire.device, wire.timeout_s
        self._soundness = list({id(w.soundness): w.soundness for w in (wire, *wires)}.values())
        self._roll = Roll(watched or wire.group)
        self._failed: Exception | None = None
        self._failing, self._setting = threading.Lock(), threading.Lock()
        self._queue = ExchangeQueue.of(wire.device)
        self._handed: list[Any] = []  # events of buffers that the next exchange needs
        self._held: list[Task] | None = [] if holds else None

    @property
    def on_stream(self) -> bool:
        """True if exchanges are queued on a stream of a GPU."""
        return self._queue.stream.queues

    def receive(self, *buffers: torch.Tensor) -> None:
        """Take over buffers that the caller's stream has written. Exchanges that are submitted from now on come after that.

        Raises:
            UserError: a CUDA graph is being captured; nothing has been queued then.
        """
        refuse_capture(self._device)
        self._handed.append(self._queue.stream.hand_over(*buffers))

    def take_back(self, *tensors: torch.Tensor) -> None:
        """Let the caller's stream use what an exchange has allocated, after the wait for its future."""
        self._queue.stream.take_back(*tensors)

    def submit(self, exchange: Task, waiting: Sequence[Waiting], last: bool = True) -> None:
        """Queue ``exchange``. The futures then hold their buffers, with undefined content if it failed.

        Args:
            last: True if no further exchange of this backward pass follows.
        """
        self.receive()
        after, self._handed = self._handed, []
        task = partial(self._finish, [exchange], waiting, after)
        if self._held is not None:
            self._held.append(task)
            if not last:
                return
            held, self._held = self._held, []
            for earlier in held:
                self._queue.submit(earlier)
        else:
            self._queue.submit(task)

    def _finish(self, exchange: list[Task], waiting: Sequence[Waiting], after: Sequence[Any]) -> None:
        """Run the one exchange of the list and set its futures, without a remaining reference to it."""
        flight = None
        if self.on_stream:
            flight = self._queue.watch.add(Flight(self._timeout_s, partial(self._give_up, waiting)))
        try:
            with self._queue.stream.running(after):
                try:
                    if self._failed is not None:  # the ranks are no longer in step
                        raise self._failed
                    exchange.pop()()
                except Exception as error:
                    self._fail(error)
                exchange.clear()
                self._set(waiting)  # within the stream, for which the futures' readers then wait
                if flight is not None:
                    flight.done = self._queue.stream.end()
        except Exception as error:  # of the device itself
            self._fail(error)
        exchange.clear()
        self._set(waiting)

    def _set(self, waiting: Sequence[Waiting]) -> None:
        with self._setting:
            for buffer, future in waiting:
                if not future.done():
                    future.set_result(buffer)

    def _give_up(self, waiting: Sequence[Waiting]) -> None:
        """Fail all exchanges, because one has not ended in time, and release whoever waits for it."""
        self._fail(WireError(f"Timed out: an exchange has not ended within {self._timeout_s:g} s"))
        with allocating_on(self._device):
            self._set(waiting)
        groups = {id(group): group for soundness in self._soundness for group in soundness.groups}
        abort(groups.values(), self._device)

    def _fail(self, error: Exception) -> Exception:
        """Return the error to raise from now on: the first of any thread, with the names of lost ranks."""
        with self._failing:
            if self._failed is None:
                lost = self._ranks > 1 and isinstance(error, WireError | dist.DistError)
                for soundness in self._soundness:
                    soundness.sound = False
                self._failed = self._roll.verdict(error) if lost else error
                told = self._failed
                _log.error("rank %d: the exchange failed: %s: %s", self._rank, type(told).__name__, told)
            return self._failed

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Run a collective on the caller's own thread. A lost rank fails all exchanges, and is named here too."""
        try:
            yield
        except (WireError, dist.DistError) as error:
            raise self._fail(error) from error

    def check(self) -> None:
        """Raise the error of an exchange, on every call, because the ranks are no longer in step."""
        if self._failed is not None:
            raise self._failed

    def after_backward(self, then: Task) -> None:
        """Call ``check`` and then ``then`` at the end of the current backward pass, after DDP's own callback.

        DDP queues its callback when the hook of the last bucket returns; a callback queued by a callback runs after it.
        """
        engine: Any = torch.autograd.Variable._execution_engine

        def end() -> None:
            self.check()
            then()

        engine.queue_callback(lambda: engine.queue_callback(end))


def _serve(tasks: queue.SimpleQueue[Task | None]) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # it refers to the owner, which must not live until the next one
