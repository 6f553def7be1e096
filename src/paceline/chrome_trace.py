"""Timelines as Chrome trace events, the JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open.

One process per run and rank, one thread per lane, one ``X`` (complete) event per bar, in microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from paceline.errors import UserError
from paceline.record import Event

LANES = ("compute", "wait", "codec", "network")
"""The lanes of a step, in the order in which every picture shows them."""

_FIX = "write the trace again with paceline predict or paceline train"


def chrome_trace(timelines: Mapping[str, Iterable[Event]]) -> dict[str, Any]:
    """Convert timelines by run label (in seconds) to one Chrome trace (in microseconds, to the nanosecond)."""
    trace: list[dict[str, Any]] = []
    pids: dict[tuple[str, int], int] = {}
    tids: dict[tuple[int, str], int] = {}
    for label, events in timelines.items():
        kept = list(events)
        lanes = (*LANES, *sorted({e.lane for e in kept} - set(LANES)))
        for rank in sorted({e.rank for e in kept}) or [0]:  # a run without events still keeps its name
            pid = pids[label, rank] = len(pids) + 1
            trace += _names(pid, f"{label}, rank {rank}")
            used = [lane for lane in lanes if any(e.lane == lane and e.rank == rank for e in kept)]
            for lane in used:
                tid = tids[pid, lane] = lanes.index(lane) + 1
                trace += _names(pid, lane, tid)
        trace += [_complete(e, pids[label, e.rank], tids[pids[label, e.rank], e.lane]) for e in kept]
    return {"traceEvents": trace, "displayTimeUnit": "ms"}


def _names(pid: int, name: str, tid: int | None = None) -> list[dict[str, Any]]:
    """Return the metadata that names a process or thread and fixes its position on the screen."""
    what = "process" if tid is None else "thread"
    at = {"ph": "M", "pid": pid, "tid": tid or 0}
    return [
        {"name": f"{what}_name", **at, "args": {"name": name}},
        {"name": f"{what}_sort_index", **at, "args": {"sort_index": pid if tid is None else tid}},
    ]


def _complete(event: Event, pid: int, tid: int) -> dict[str, Any]:
    """Return a complete event, with both ends rounded so that adjacent bars neither overlap nor leave a gap."""
    start, end = round(event.start_s * 1e6, 3), round(event.end_s * 1e6, 3)
    times = {"ts": start, "dur": round(end - start, 3)}
    return {"name": event.name, "cat": event.lane, "ph": "X", "pid": pid, "tid": tid, **times}


def read_chrome_trace(trace: Mapping[str, Any]) -> dict[str, tuple[Event, ...]]:
    """Parse a trace of ``chrome_trace`` into events in seconds by run label. Raises UserError for anything else."""
    try:
        return _read(trace["traceEvents"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"not a Chrome trace written by paceline ({type(error).__name__}: {error})", _FIX) from error


def _read(items: Iterable[Mapping[str, Any]]) -> dict[str, tuple[Event, ...]]:
    items = list(items)
    names = {
        (item["name"], item["pid"], item["tid"]): str(item["args"]["name"])
        for item in items
        if item["ph"] == "M" and item["name"] in ("process_name", "thread_name")
    }
    owner: dict[int, tuple[str, int]] = {}
    for (kind, pid, _), name in names.items():
        if kind == "process_name":
            run, separator, number = name.rpartition(", rank ")
            owner[pid] = (run, int(number)) if separator else (name, 0)
    timelines: dict[str, list[Event]] = {label: [] for label, _ in owner.values()}
    for item in items:
        if item["ph"] != "X":
            continue
        label, rank = owner[item["pid"]]
        start, duration = float(item["ts"]) / 1e6, float(item["dur"]) / 1e6
        if not (math.isfinite(start) and math.isfinite(duration)):
            raise ValueError(f"event {item['name']!r} has no finite time")
        lane = names["thread_name", item["pid"], item["tid"]]
        timelines[label].append(Event(name=str(item["name"]), lane=lane, start_s=start, duration_s=duration, rank=rank))
    return {label: tuple(events) for label, events in timelines.items()}
