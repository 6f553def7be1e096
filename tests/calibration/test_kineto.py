"""Traces of the PyTorch profiler: steps, ranks, and waits for NCCL."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.calibration.imports.kineto import _RankTrace, read_traces
from paceline.errors import UserError

MS = 1e3
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def step(number: int, start: float, duration: float, category: str = "user_annotation") -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": f"ProfilerStep#{number}", "ts": start, "dur": duration, "pid": 1, "tid": 1}


def kernel(name: str, start: float, duration: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": duration, "pid": 0, "tid": 7, "args": {"device": 0}}


def trace(place: Path, events: list[dict[str, Any]], **members: Any) -> Path:
    text = json.dumps({"schemaVersion": 1, **members, "traceEvents": events, "traceName": place.name})
    if place.suffix == ".gz":
        place.write_bytes(gzip.compress(text.encode()))
    else:
        place.write_text(text)
    return place


def test_steps_of_a_recorded_trace() -> None:
    """Of PyTorch 2.13 on a CPU, six steps of rank 0 of two, without most of its operations; in milliseconds as it has them."""
    steps = read_traces([Path(__file__).parents[1] / "data/kineto_rank0.json.gz"])
    assert [round(seconds * 1e3, 3) for seconds in steps.step_s] == [9.706, 7.548, 7.836, 2.847, 6.644, 4.326]
    assert (steps.sync_s, steps.processes, dict(steps.job)) == (None, 2, {})


def test_without_steps_the_updates_divide_them(tmp_path: Path) -> None:
    def update(name: str, start: float) -> dict[str, Any]:
        return {**step(0, start, 2 * MS), "name": f"Optimizer.step#{name}.step"}

    events = [update(name, start * MS) for start in (10, 110, 215) for name in ("AdamW", "SGD")]
    assert read_traces([trace(tmp_path / "a.json", events)]).step_s == pytest.approx([0.1, 0.105])
    with pytest.raises(UserError, match="has no ProfilerStep"):
        read_traces([trace(tmp_path / "b.json", events[:1])])


@pytest.mark.full
def test_steps_of_a_real_trace(tmp_path: Path) -> None:
    """The oracle: what the profiler's own events say."""
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'paceline[train]'")
    from torch.profiler import ProfilerActivity, profile, schedule

    place, layer = tmp_path / "trace.json.gz", torch.nn.Linear(64, 64)
    plan = schedule(wait=1, warmup=1, active=4, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=lambda p: p.export_chrome_trace(str(place))
    ) as p:
        for _ in range(6):
            layer(torch.ones(8, 64)).sum().backward()
            p.step()
    own = [event.cpu_time_total / 1e6 for event in p.events() if event.name.startswith("ProfilerStep")]
    steps = read_traces([place])
    assert list(steps.step_s) == pytest.approx(own, rel=1e-3) and len(own) == 4
    assert (steps.sync_s, steps.processes, dict(steps.job)) == (None, 0, {})


def test_waits_are_when_nccl_runs_alone(tmp_path: Path) -> None:
    events = [
        step(5, 0, 10 * MS),
        step(6, 10 * MS, 12 * MS),
        step(6, 10 * MS, 12 * MS, "gpu_user_annotation"),
        kernel("sm80_gemm", 0, 6 * MS),
        kernel(ALL_REDUCE, 4 * MS, 5 * MS),  # 3 ms alone
        kernel("adam", 9 * MS, 1 * MS),
        kernel("sm80_gemm", 10 * MS, 9 * MS),
        kernel(ALL_REDUCE, 18 * MS, 3 * MS),  # 2 ms alone
        kernel(ALL_REDUCE, 20 * MS, 3 * MS),  # another stream: 1 ms more, and 1 ms after the last step
        {"ph": "i", "name": "no duration", "ts": 3},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 1},
    ]
    devices = [{"id": n, "name": "NVIDIA A100-SXM4-80GB"} for n in range(8)]
    place = trace(tmp_path / "a.json", events, deviceProperties=devices, distributedInfo={"rank": 3, "world_size": 8})
    steps = read_traces([place])
    assert list(steps.step_s) == [0.010, 0.012]
    assert steps.sync_s == pytest.approx((3 + 2 + 1) / 2 * 1e-3)
    assert steps.processes == 8
    assert dict(steps.job) == {"device": "NVIDIA A100-SXM4-80GB", "devices_per_node": "8", "nodes": "1"}


@given(st.lists(st.tuples(st.booleans(), st.integers(-3, 30), st.integers(0, 8)), max_size=12))
def test_waits_agree_with_counting_each_microsecond(kernels: list[tuple[bool, int, int]]) -> None:
    rank = _RankTrace(Path("trace.json"))
    for event in (step(1, 0, 12), step(2, 12, 8), *(kernel(ALL_REDUCE if w else "gemm", s, d) for w, s, d in kernels)):
        rank.add("traceEvents", event)
    moments = [t for t in range(20) if any(w and s <= t < s + d for w, s, d in kernels)]
    alone = [t for t in moments if not any(not w and s <= t < s + d for w, s, d in kernels)]
    expected = len(alone) / 2 / 1e6 if any(w for w, _, _ in kernels) else None
    assert rank.sync_s() == (None if expected is None else pytest.approx(expected))


def test_ranks_are_taken_together(tmp_path: Path) -> None:
    paths = [
        trace(
            tmp_path / f"rank{rank}.json.gz",
            [step(n, n * 20 * MS, (10 + rank) * MS) for n in range(3 - rank, 6)],
            distributedInfo={"rank": rank, "world_size": 16},
            deviceProperties=[{"name": "NVIDIA H100 80GB HBM3"}] * 8,
        )
        for rank in range(3)
    ]
    steps = read_traces(paths)
    assert list(steps.step_s) == pytest.approx([0.011] * 3)  # the middle one, of the steps that all have
    assert dict(steps.job) == {"device": "NVIDIA H100 80GB HBM3"}  # and not how many nodes


@pytest.mark.parametrize(
    ("ranks", "said"),
    [(((1, 8), (1, 8)), "two traces are of rank 1"), (((0, 8), (1, 16)), "jobs of 8 and 16 processes")],
)
def test_traces_of_different_jobs_are_refused(tmp_path: Path, ranks: tuple[tuple[int, int], ...], said: str) -> None:
    paths = [
        trace(tmp_path / f"{n}.json", [step(1, 0, 5)], distributedInfo={"rank": rank, "world_size": world})
        for n, (rank, world) in enumerate(ranks)
    ]
    with pytest.raises(UserError, match=said):
        read_traces(paths)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"traceEvents": []}', "has no ProfilerStep"),
        ('{"traceEvents": [{"ph": "X"', "is no Chrome trace: it ends in the middle"),
        ('{"traceEvents": [{"ph": "X", "dur": "x", "ts": "y", "cat": "kernel", "name": "a"}]}', "is no Chrome trace"),
        ("words", "is no Chrome trace"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, said: str) -> None:
    place = tmp_path / "a.json"
    place.write_text(text)
    with pytest.raises(UserError, match=said):
        read_traces([place])
    broken = tmp_path / "b.json.gz"
    broken.write_bytes(gzip.compress(text.encode())[:-9])
    with pytest.raises(UserError, match=r"cannot read|is no Chrome trace"):
        read_traces([broken])
