"""Measurements of a step: bytes handed to collectives, and times of its parts."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from paceline.record import Event

_log = logging.getLogger("paceline")

_KEPT = 4096  # events: a script that never begins a step must not fill the memory


class Meter:
    """Collector of the bytes and the events of the current step of one rank.

    Attributes:
        sent_bytes: bytes this rank has sent to others since ``begin_step``.
        bookkeeping_bytes: further bytes that describe the step and are not gradients, such as norms.
        events: the latest thousands of events since ``begin_step``; times in seconds from it.
        backward_end_s: when the last bucket became ready.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._nonfinite_steps = 0
        self._later: tuple[Callable[[], bool], int] | None = None
        self.begin_step()

    def begin_step(self) -> None:
        """Reset the counters."""
        self.sent_bytes = self.bookkeeping_bytes = 0
        self.events: deque[Event] = deque(maxlen=_KEPT)
        self.backward_end_s = 0.0
        self._start = time.perf_counter()

    def now(self) -> float:
        """Seconds since ``begin_step``."""
        return time.perf_counter() - self._start

    def bucket_ready(self) -> None:
        """Record a bucket with complete gradients; the last one of a step ends the backward pass."""
        self.backward_end_s = self.now()

    @property
    def nonfinite_steps(self) -> int:
        """Number of steps since the meter was made in which a gradient of any rank was NaN, infinite or too large for a codec,
        or a mean with its residual too large for fp16.

        For a sharded model without lossy compression, reading it waits until all ranks have ended the last step.
        """
        self._settle()
        return self._nonfinite_steps

    @nonfinite_steps.setter
    def nonfinite_steps(self, steps: int) -> None:
        """Continue counting from this number."""
        self._nonfinite_steps, self._later = steps, None

    def count_later(self, told: Callable[[], bool], step: int) -> None:
        """Call ``count_nonfinite`` later with the result of ``told``. ``told`` may wait for other ranks, and is called at the
        end of the next step or when the count is read.
        """
        self._settle()
        self._later = told, step

    def _settle(self) -> None:
        if self._later is not None:
            (told, step), self._later = self._later, None
            self.count_nonfinite(told(), step)

    def count_nonfinite(self, nonfinite: bool, step: int) -> None:
        """Count a step with a NaN or an infinity. Rank 0 reports the first one."""
        if nonfinite and self._nonfinite_steps == 0 and self.rank == 0:
            _log.warning(
                "step %d: a gradient is NaN, infinite or too large. Such a step is not compressed; if a part of it has been "
                "sent compressed before, all its means become NaN. A mean that is too large for fp16 with its residual is "
                "clipped; with a grad_scaler the step becomes NaN",
                step,
            )
        self._nonfinite_steps += nonfinite

    def add(self, name: str, lane: str, start_s: float) -> None:
        """Record an event from ``start_s`` until now."""
        self.events.append(Event(name=name, lane=lane, start_s=start_s, duration_s=self.now() - start_s, rank=self.rank))

    @contextmanager
    def span(self, name: str, lane: str) -> Iterator[None]:
        """Record the enclosed work as one event."""
        start = self.now()
        try:
            yield
        finally:
            self.add(name, lane, start)

    def seconds(self, lane: str) -> float:
        """Return the time since ``begin_step`` in which a lane was busy, with overlapping events counted once."""
        total = end = 0.0
        for event in sorted((e for e in self.events if e.lane == lane), key=lambda e: e.start_s):
            total += max(0.0, event.start_s + event.duration_s - max(event.start_s, end))
            end = max(end, event.start_s + event.duration_s)
        return total
