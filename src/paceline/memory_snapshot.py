"""Predicted memory as a snapshot that PyTorch's viewer opens (pytorch.org/memory_viz).

The format is that of ``torch.cuda.memory._dump_snapshot``: a pickle of plain dicts, with the segments and the trace of each
device. The viewer (``torch/utils/viz/MemoryViz.js``) reads pickles of protocols 2 to 4 and colours tensors by ``category``.
PyTorch's functions in ``torch.cuda._memory_viz`` read the same file. Nothing here needs PyTorch.
"""

from __future__ import annotations

import math
import pickle
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.memory_timeline import MARGIN, Allocation, MemoryTimeline

PROTOCOL = 4
"""Newest pickle protocol that the viewer reads."""
ALIGNED = 512
"""Bytes to which PyTorch's allocator rounds a block (``c10/cuda/CUDACachingAllocator.h``, ``kMinBlockSize``)."""
_BASE = 0x7F00_0000_0000
_UNKNOWN = "unknown"
"""Category that the viewer needs next to named ones."""


@dataclass(slots=True)
class _Arena:
    """Address space of a device. A new block takes the lowest gap that holds it."""

    end: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def take(self, size: int) -> int:
        """Return the address of a new block of ``size`` bytes."""
        for number, (start, length) in enumerate(self.gaps):
            if length >= size:
                if length == size:
                    del self.gaps[number]
                else:
                    self.gaps[number] = start + size, length - size
                return start
        start, self.end = self.end, self.end + size
        return start

    def give(self, start: int, size: int) -> None:
        """Free a block, and join it with the gaps next to it."""
        place = bisect_left(self.gaps, (start, 0))
        if place < len(self.gaps) and self.gaps[place][0] == start + size:
            size += self.gaps.pop(place)[1]
        if place and sum(self.gaps[place - 1]) == start:
            start, before = self.gaps.pop(place - 1)
            size += before
        if start + size == self.end:
            self.end = start
        else:
            insort(self.gaps, (start, size))


def snapshot(timelines: Sequence[MemoryTimeline]) -> dict[str, Any]:
    """Return the snapshot: one device for the ranks of each timeline, in their order. What no tensor holds is left out."""
    devices = [_device(number, timeline) for number, timeline in enumerate(timelines)]
    return {"segments": [segment for segment, _ in devices], "device_traces": [trace for _, trace in devices]}


def write(timelines: Sequence[MemoryTimeline], path: str | Path) -> Path:
    """Write the snapshot as a pickle. Raises UserError if the file cannot be written."""
    file = Path(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pickle.dumps(snapshot(timelines), protocol=PROTOCOL))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}", "choose another file for the snapshot") from error
    return file


def _device(number: int, timeline: MemoryTimeline) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the segment and the trace of one device."""
    held = [a for a in timeline.allocations if a.held]
    if timeline.margin:
        held.append(Allocation(MARGIN, "parts that the prediction adds up, needed at different times", timeline.margin))
    arena, trace, top = _Arena(), list[dict[str, Any]](), 0
    places: dict[int, int] = {}
    frames: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def event(action: str, a: Allocation, at_s: float) -> dict[str, Any]:
        stack = frames.setdefault((a.purpose, a.name), _frames(a))
        size = math.ceil(a.bytes)
        own = {"action": action, "addr": _BASE + places[id(a)], "size": size, "stream": 0}
        return {**own, "time_us": round(at_s * 1e6), "frames": stack, "category": a.purpose}

    for a in held:
        places[id(a)] = arena.take(_rounded(a))
        trace.append(event("alloc", a, 0.0))
    for at_s, a, begins in timeline.changes():
        if begins:
            places[id(a)] = arena.take(_rounded(a))
            trace.append(event("alloc", a, at_s))
            top = max(top, arena.end)
        else:
            trace += [event(action, a, at_s) for action in ("free_requested", "free_completed")]
            arena.give(places[id(a)], _rounded(a))
    total = max(top, arena.end, ALIGNED)
    blocks = [_block(a, _BASE + places[id(a)]) for a in held]
    used = sum(block["size"] for block in blocks)
    if total > used:
        blocks.append({"address": _BASE + used, "size": total - used, "requested_size": 0, "state": "inactive", "frames": []})
    segment = {
        "device": number,
        "address": _BASE,
        "total_size": total,
        "allocated_size": used,
        "active_size": used,
        "requested_size": sum(block["requested_size"] for block in blocks),
        "stream": 0,
        "segment_type": "large",
        "is_expandable": False,
        "frames": [_frame(timeline.title)],
        "blocks": blocks,
    }
    begun = {"action": "segment_alloc", "addr": _BASE, "size": total, "stream": 0, "time_us": 0, "frames": segment["frames"]}
    taken = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": round(timeline.step_s * 1e6), "frames": []}
    return segment, [begun, *trace, {**taken, "category": _UNKNOWN}]


def _rounded(a: Allocation) -> int:
    """Return the bytes of the block of an allocation."""
    return max(ALIGNED, ALIGNED * math.ceil(a.bytes / ALIGNED))


def _block(a: Allocation, address: int) -> dict[str, Any]:
    sizes = {"address": address, "size": _rounded(a), "requested_size": math.ceil(a.bytes)}
    return {**sizes, "state": "active_allocated", "frames": _frames(a)}


def _frames(a: Allocation) -> list[dict[str, Any]]:
    """Return the stack that the viewer shows for a tensor: what it is, then what it is for."""
    return [_frame(a.name), _frame(a.purpose)]


def _frame(name: str) -> dict[str, Any]:
    return {"filename": "predicted", "line": 0, "name": name}
