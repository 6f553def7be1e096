"""Time limit of exchanges on a GPU. Waiting for NCCL does not block the host, so no call of the host ends in time."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from paceline.training.attach import daemon_threads as daemons

POLL_S = 0.25


class Flight:
    """Exchange that was handed to a device.

    Args:
        timeout_s: how long it may take after all earlier ones have ended.
        late: called once, on the watching thread, if it takes longer.

    Attributes:
        done: event of its end; None until all of it is queued.
    """

    def __init__(self, timeout_s: float, late: Callable[[], None]) -> None:
        self.timeout_s, self.late = timeout_s, late
        self.done: Any = None
        self.since = time.monotonic()

    @property
    def has_ended(self) -> bool:
        """True if the device has done all of it."""
        return self.done is not None and bool(self.done.query())


class Watch:
    """Watcher of the exchanges of one device, in their order. It polls, so no stream and no step waits for it."""

    def __init__(self) -> None:
        self._flights: deque[Flight] = deque()
        self._stop = threading.Event()
        self._started = False

    def add(self, flight: Flight) -> Flight:
        """Watch an exchange. The first one starts the thread."""
        self._flights.append(flight)
        if not self._started:
            self._started = True
            daemons.start(self, _watch, (self._flights, self._stop), "paceline-watch", self._stop.set)
        return flight


def look(flights: deque[Flight], now: float) -> None:
    """Remove exchanges that have ended, and report the first one if it is late."""
    while flights:
        first = flights[0]
        if first.has_ended:
            flights.popleft()
            if flights:
                flights[0].since = max(flights[0].since, now)
        elif now - first.since > first.timeout_s:
            flights.popleft()
            first.late()
        else:
            return


def _watch(flights: deque[Flight], stop: threading.Event) -> None:
    while not stop.wait(POLL_S):
        look(flights, time.monotonic())


def abort(groups: Iterable[dist.ProcessGroup], device: torch.device) -> None:
    """End the collectives in flight, so that kernels that wait for a lost rank leave the device and the host's waits end.

    Only NCCL has this. Their communicators are of no use afterwards.
    """
    for group in groups:
        with suppress(Exception):  # another backend, or a group that was destroyed
            group._get_backend(device).abort()
