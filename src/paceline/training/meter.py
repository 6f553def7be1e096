"""What a step did: the bytes handed to collectives, and when each part ran."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.record import Event

_log = logging.getLogger("paceline")

_KEPT = 4096  # events: a script that never begins a step must not fill the memory


class Meter:
    """Collects the bytes and the events of the current step of one rank.

    Attributes:
        sent_bytes: bytes this rank has sent to others since ``begin_step``.
        bookkeeping_bytes: further bytes that describe the step and are not gradients, such as norms.
        events: what ran since ``begin_step``, the latest thousands; times in seconds from it.
        backward_end_s: when the last bucket became ready.
        nonfinite_steps: steps in which a gradient was NaN, infinite or too large for a codec, since the meter was made.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.nonfinite_steps = 0
        self.begin_step()

    def begin_step(self) -> None:
        """Start counting anew."""
        self.sent_bytes = self.bookkeeping_bytes = 0
        self.events: deque[Event] = deque(maxlen=_KEPT)
        self.backward_end_s = 0.0
        self._start = time.perf_counter()

    def now(self) -> float:
        """Seconds since ``begin_step``."""
        return time.perf_counter() - self._start

    def bucket_ready(self) -> None:
        """A bucket's gradients are there; with the last bucket of a step the backward pass is over."""
        self.backward_end_s = self.now()

    def count_nonfinite(self, nonfinite: bool, step: int) -> None:
        """Count a step with a NaN or an infinity; rank 0 says so of the first."""
        if nonfinite and self.nonfinite_steps == 0 and self.rank == 0:
            _log.warning(
                "step %d: a gradient is NaN, infinite or too large. Such a step is not compressed; if a part of it has been "
                "sent compressed before, all its means become NaN",
                step,
            )
        self.nonfinite_steps += nonfinite

    def add(self, name: str, lane: str, start_s: float) -> None:
        """Record what began at ``start_s`` and ends now."""
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
        """Time since ``begin_step`` in which something ran on a lane; what ran at the same time counts once."""
        total = end = 0.0
        for event in sorted((e for e in self.events if e.lane == lane), key=lambda e: e.start_s):
            total += max(0.0, event.start_s + event.duration_s - max(event.start_s, end))
            end = max(end, event.start_s + event.duration_s)
        return total
