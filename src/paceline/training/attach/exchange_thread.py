"""Thread that runs a model's exchanges in order, in parallel with the backward pass."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from paceline.training.attach import daemon_threads as daemons
from paceline.training.attach.liveness import Roll
from paceline.training.exchanges.wires.collectives import Wire, WireError

_log = logging.getLogger("paceline")

Task = Callable[[], None]
Future = torch.futures.Future[torch.Tensor]
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


class Exchanges:
    """Exchanges in the background, in an order that all ranks share. After one fails, all later ones fail.

    A future always gets its buffer, because DDP turns any error of a future into a RuntimeError. ``after_backward`` raises the
    error with its own type.

    Args:
        wire: wire of the exchanges.
        watched: the ranks of which a lost one is named, all of which make this at the same time; by default those of ``wire``.
    """

    def __init__(self, wire: Wire, watched: dist.ProcessGroup | None = None) -> None:
        self._rank, self._ranks, self._soundness = wire.rank, wire.world_size, wire.soundness
        self._roll = Roll(watched or wire.group)
        self._failed: Exception | None = None
        self._failing = threading.Lock()
        self._work = Background(self, "paceline-exchange")

    def submit(self, exchange: Task, waiting: Sequence[Waiting]) -> None:
        """Queue ``exchange``. The futures then hold their buffers, with undefined content if it failed."""
        self._work.submit(partial(self._finish, [exchange], waiting))

    def _finish(self, exchange: list[Task], waiting: Sequence[Waiting]) -> None:
        """Run the one exchange of the list and set its futures, without a remaining reference to it."""
        try:
            if self._failed is not None:  # the ranks are no longer in step
                raise self._failed
            exchange.pop()()
        except Exception as error:
            self._fail(error)
        exchange.clear()
        for buffer, future in waiting:
            future.set_result(buffer)

    def _fail(self, error: Exception) -> Exception:
        """Return the error to raise from now on: the first of any thread, with the names of lost ranks."""
        with self._failing:
            if self._failed is None:
                lost = self._ranks > 1 and isinstance(error, WireError | dist.DistError)
                self._soundness.sound = False
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


def promise(buffer: torch.Tensor) -> Future:
    """Return a future for a bucket's buffer."""
    return torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else [])


def _serve(tasks: queue.SimpleQueue[Task | None]) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # it refers to the owner, which must not live until the next one
