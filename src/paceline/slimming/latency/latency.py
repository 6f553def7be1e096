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
"""Least seconds of a turn of the profile, so that the clock and task switches count little."""
SLICE_S, MEASURED_S = 0.002, 0.2
"""Least seconds of a turn, shorter than most task switches, and seconds to spend on each call."""
LEAST_TURNS, MOST_TURNS = 15, 101


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of one run.

    Calls that are timed together are ratios to the first, which runs before and after each of them, times its median. So a
    clock that drifts during the measurement changes no ratio.

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
    turns: int | None = None,
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
    calls: Mapping[str, Callable[[], object]], turns: int | None = None, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Latency]:
    """Return the latency of each call, by name. They take turns with the first, their reference (see ``Latency``).

    Args:
        turns: None: as many as ``MEASURED_S`` needs, from ``LEAST_TURNS`` to ``MOST_TURNS``.
        clock: in seconds; ``time.process_time`` excludes other programs' time if there is one thread.
    """
    repeats, lasts = {}, 0.0
    for name, call in calls.items():
        for _ in range(WARM_UP):
            call()
        start = clock()
        call()
        once = max(clock() - start, 1e-7)
        repeats[name] = max(1, round(SLICE_S / once))
        lasts = max(lasts, repeats[name] * once)
    turns = turns or min(max(round(MEASURED_S / lasts), LEAST_TURNS), MOST_TURNS)

    def timed(name: str) -> float:
        call = calls[name]
        if repeats[name] > 1:  # the others' turns have taken its place in the caches
            call()
        start = clock()
        for _ in range(repeats[name]):
            call()
        return (clock() - start) / repeats[name]

    reference, *others = calls
    whole = [timed(reference)]
    ratios: dict[str, list[float]] = {name: [] for name in others}
    for _ in range(turns - 1 if not others else turns):
        for name in others:
            took = timed(name)
            whole.append(timed(reference))
            ratios[name].append(2 * took / max(whole[-2] + whole[-1], 1e-12))
        if not others:
            whole.append(timed(reference))
    low, median, high = np.percentile(whole, [25, 50, 75]).tolist()
    found = {reference: Latency(median, low, high, turns)}
    for name, each in ratios.items():
        low, middle, high = (median * np.percentile(each, [25, 50, 75])).tolist()
        found[name] = Latency(middle, low, high, turns)
    return found


def own_clock(threads: int) -> Callable[[], float]:
    """Return the clock of a runtime: the processor time of its only thread, in which other programs do not count, or the time
    of day if it has several.
    """
    return time.process_time if threads == 1 else time.perf_counter
