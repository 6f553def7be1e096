"""The snapshot against PyTorch's readers, and against the opcodes that the viewer knows."""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.memory_snapshot import ALIGNED, snapshot, write
from paceline.memory_timeline import MemoryTimeline
from test_memory_timeline import tensor, timeline

MIB = 2.0**20
KNOWN_OPCODES = {
    *("APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT", "BINUNICODE", "DICT", "EMPTY_DICT"),
    *("EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LIST", "LONG1", "LONG_BINGET", "LONG_BINPUT", "MARK", "MEMOIZE", "NEWFALSE"),
    *("NEWTRUE", "NONE", "PROTO", "SETITEM", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
}
"""Opcodes of ``unpickle`` in PyTorch's ``torch/utils/viz/MemoryViz.js``."""


def step() -> MemoryTimeline:
    """Two tensors at once at most, and one that fits the gap of the first."""
    sizes = {"weights": 40 * MIB, "activations": 90 * MIB + 2.5, "context": 1e9}
    tensors = [
        tensor(40 * MIB, purpose="weights"),
        tensor(60 * MIB, 1, 5),
        tensor(30 * MIB, 2, 9),
        tensor(50 * MIB + 0.5, 6, 8),
    ]
    return timeline(tensors, memory=sizes)


def replayed(trace: list[dict[str, Any]]) -> Iterator[tuple[int, dict[int, int]]]:
    """Bytes and blocks after each event, in which no block may overlap another."""
    blocks: dict[int, int] = {}
    for event in trace:
        address, size = event["addr"], event["size"]
        if event["action"] == "alloc":
            assert all(address + size <= other or other + length <= address for other, length in blocks.items())
            blocks[address] = size
        elif event["action"] == "free_completed":
            assert blocks.pop(address) == size
        yield sum(blocks.values()), dict(blocks)


def test_the_peak_of_the_trace_is_the_predicted_one() -> None:
    t = step()
    (trace,) = snapshot([t])["device_traces"]
    most = max(size for size, _ in replayed(trace))
    assert t.margin == 2.5 and most == pytest.approx(t.peak_bytes - sum(t.beyond.values()), abs=4)
    assert [event["time_us"] for event in trace] == sorted(event["time_us"] for event in trace)


def test_every_address_is_in_a_segment_and_what_stays_is_its_blocks() -> None:
    data = snapshot([step(), timeline([])])
    for number, segment in enumerate(data["segments"]):
        first, end = segment["address"], segment["address"] + segment["total_size"]
        trace = data["device_traces"][number]
        assert segment["device"] == number and sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        assert all(first <= e["addr"] and e["addr"] + e["size"] <= end for e in trace[:-1]) and first % ALIGNED == 0
        *_, (_, left) = [(0, {}), *replayed(trace)]
        active = [block for block in segment["blocks"] if block["state"] == "active_allocated"]
        assert {block["address"]: block["requested_size"] for block in active} == left
        assert (trace[-1]["action"], trace[-1]["category"]) == ("snapshot", "unknown")  # the viewer fails without that category


def test_a_free_gap_is_used_again() -> None:
    (segment,) = snapshot([step()])["segments"]
    assert segment["total_size"] < 40 * MIB + 60 * MIB + 30 * MIB + MIB


def test_the_viewer_can_read_the_pickle(tmp_path: Path) -> None:
    file = write([step()] * 2, tmp_path / "deep" / "memory.pickle")
    assert {op.name for op, _, _ in pickletools.genops(file.read_bytes())} <= KNOWN_OPCODES
    assert pickle.loads(file.read_bytes()) == snapshot([step()] * 2)


def test_pytorch_reads_it(tmp_path: Path) -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz", reason="needs torch")
    data = pickle.loads(write([step()], tmp_path / "memory.pickle").read_bytes())
    summary = viz.segsum(data)  # it checks that blocks fill their segments
    assert "total_allocated: 40.0MiB" in summary and "segments: 1" in summary
    lines = viz.trace(data).splitlines()
    assert sum(" = a[" in line for line in lines) == 5 and sum(line.startswith("del ") for line in lines) == 3
    assert not any("MEM[" in line for line in lines)  # every block is in the segment
    flames: list[str] = []
    viz.memory(data, flames.append)
    assert f"stream_0;active_allocated;predicted:0:weights;predicted:0:of.4.1943e+07 {int(40 * MIB)}" in flames[0]
    for page in (viz.trace_plot(data), viz.segment_plot(data)):
        assert "MemoryViz.js" in page


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write([step()], tmp_path / "file" / "memory.pickle")
