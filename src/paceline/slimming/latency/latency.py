"""Latency of exported networks on this machine, measured in alternation."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paceline.slimming.export.onnx_export import feed, open_session

WARM_UP = 3
LEAST_S = 0.02
"""Least seconds of a turn, so that the clock and task switches count little."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of one run.

    Attributes:
        median_s: over the turns. ``low_s``, ``high_s``: quartiles. ``turns``: their number.
    """

    median_s: float
    low_s: float
    high_s: float
    turns: int


def latencies(
    files: Mapping[str, tuple[str | Path, tuple[Any, ...]]],
    threads: int = 1,
    turns: int = 15,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Latency]:
    """Measure the latency of each ONNX file, by name.

    Args:
        files: file and inputs, by name. ``threads``: threads of ONNX Runtime.
        turns, clock: as of ``alternating``.
    """
    with pinned(threads):
        return alternating({name: session_call(file, inputs, threads) for name, (file, inputs) in files.items()}, turns, clock)


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Pin this thread, and the threads that it starts, to some of the process's processors. Processes that measure at once
    begin at different processors. Without support of the system nothing is pinned.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    first, processors = os.getpid() % len(allowed), sorted(allowed)
    os.sched_setaffinity(0, (processors[first:] + processors[:first])[:threads])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def session_call(file: str | Path, inputs: tuple[Any, ...], threads: int = 1) -> Callable[[], object]:
    """Return a function that runs an ONNX file once."""
    session = open_session(file, threads)
    return partial(session.run, None, feed(session, inputs))


def alternating(
    calls: Mapping[str, Callable[[], object]], turns: int = 15, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Latency]:
    """Return the latency of each call, by name. They take turns, so that a busy moment of the machine affects all equally.

    Args:
        clock: in seconds; ``time.thread_time`` excludes other programs' time if there is one thread.
    """
    repeats = {}
    for name, call in calls.items():
        for _ in range(WARM_UP):
            call()
        start = clock()
        call()
        repeats[name] = max(1, round(LEAST_S / max(clock() - start, 1e-7)))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            start = clock()
            for _ in range(repeats[name]):
                call()
            seconds[name].append((clock() - start) / repeats[name])
    found = {}
    for name, each in seconds.items():
        low, median, high = np.percentile(each, [25, 50, 75]).tolist()
        found[name] = Latency(median, low, high, turns)
    return found
