"""Latency of ONNX files on this machine, measured in alternation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.slimming.onnx_export import feed, open_session

WARM_UP = 3
LEAST_S = 0.02
"""A turn lasts at least so long, so that the clock and a switch of tasks count little."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of one run.

    Attributes:
        median_s: over the turns. ``low_s``, ``high_s``: quartiles. ``turns``: how many there were.
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
    """What each file takes, by name. The files take turns, so that a busy moment of the machine meets all alike.

    Args:
        files: ONNX file and inputs, by name. ``threads``: of ONNX Runtime.
        clock: in seconds; ``time.thread_time`` leaves out what other programs take, where there is one thread.
    """
    runs = {}
    for name, (file, inputs) in files.items():
        session = open_session(file, threads)
        given = feed(session, inputs)
        for _ in range(WARM_UP):
            session.run(None, given)
        start = clock()
        session.run(None, given)
        times = max(1, round(LEAST_S / max(clock() - start, 1e-7)))
        runs[name] = session, given, times
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, (session, given, times) in runs.items():
            start = clock()
            for _ in range(times):
                session.run(None, given)
            seconds[name].append((clock() - start) / times)
    found = {}
    for name, each in seconds.items():
        low, median, high = np.percentile(each, [25, 50, 75]).tolist()
        found[name] = Latency(median, low, high, turns)
    return found


__all__ = ["Latency", "latencies"]
