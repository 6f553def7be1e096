"""The curve of a step's memory against sums over all tensors at every moment."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.memory_timeline import Allocation, MemoryTimeline, fullest, of_rank
from paceline.record import Event


def timeline(allocations: list[Allocation], **changes: Any) -> MemoryTimeline:
    """A step of ten seconds: six forward, three backward, one of update."""
    bars = (("forward", 0.0, 6.0), ("backward", 6.0, 3.0), ("optimizer", 9.0, 1.0))
    values: dict[str, Any] = {
        "ranks": range(4),
        "stage": 0,
        "stages": 1,
        "allocations": tuple(allocations),
        "passes": tuple(Event(name=name, lane="compute", start_s=at, duration_s=long) for name, at, long in bars),
        "memory": {"activations": 100.0, "context": 7.0},
        "step_s": 10.0,
        "available": 1000.0,
        "span": (90.0, 120.0),
    }
    return MemoryTimeline(**{**values, **changes})


def tensor(size: float, start: float = -math.inf, end: float = math.inf, purpose: str = "activations") -> Allocation:
    return Allocation(purpose, f"of.{size:g}", size, start, end)


def alive(allocations: list[Allocation], at: float) -> float:
    """Sum at one moment: a tensor is there from its start until before its end, or at its start if it lasts no time."""
    return sum(a.bytes for a in allocations if a.start_s <= at and (at < a.end_s or a.start_s == a.end_s == at))


spans = st.tuples(st.integers(1, 50), st.integers(0, 20), st.integers(0, 8), st.sampled_from(["activations", "gathered"]))


@given(st.lists(spans, max_size=30), st.booleans())
def test_the_curve_is_the_sum_of_what_is_there(drawn: list[tuple[int, int, int, str]], state: bool) -> None:
    tensors = [tensor(size, at / 2, (at + long) / 2, purpose) for size, at, long, purpose in drawn]
    tensors += [tensor(5.0, purpose="weights")] * state
    t = timeline(tensors)
    moments = [0.0, *(a.start_s for a in tensors if not a.held)]
    most = max(alive(tensors, at) for at in moments)
    assert math.isclose(t.curve.totals.max(), most, abs_tol=1e-9)
    assert alive(tensors, t.peak_s) == pytest.approx(most) or not most
    assert sum(a.bytes for a in t.alive_at_peak) == pytest.approx(most)
    for row, at in enumerate(t.curve.times.tolist()):
        after = row + 1 < len(t.curve.times) and t.curve.times[row + 1] == at  # tensors that last no time go at once
        if not after:
            brief = sum(a.bytes for a in tensors if a.start_s == a.end_s == at)
            assert t.curve.totals[row] in (pytest.approx(alive(tensors, at)), pytest.approx(alive(tensors, at) - brief))


@given(st.lists(spans, min_size=1, max_size=20), st.integers(1, 40))
def test_a_sampled_curve_has_the_same_peak(drawn: list[tuple[int, int, int, str]], columns: int) -> None:
    t = timeline([tensor(size, at / 2, min(10.0, (at + long) / 2), purpose) for size, at, long, purpose in drawn if at < 20])
    curve = t.curve.sampled(columns, t.step_s)
    assert len(curve.times) == columns and curve.totals.max() == pytest.approx(t.curve.totals.max())


def test_what_ends_makes_room_for_what_begins_at_the_same_time() -> None:
    """The end of one pass and the start of the next differ by rounding."""
    t = timeline([tensor(60, 0, 0.1 + 0.2), tensor(40, 0.3, 5), tensor(30, 7, 7), tensor(30, 7, 8)])
    assert t.curve.totals.max() == 60 == alive([*t.allocations], 0.1) and t.peak_s == 0
    assert (t.margin, t.peak_bytes) == (40, 107)  # up to the predicted 100 and the context
    assert t.at_peak == {"activations": 60, "margin": 40, "context": 7}
    order = [(at, a.bytes, begins) for at, a, begins in t.changes()]
    assert order == [(0, 60, 1), (0.3, 60, 0), (0.3, 40, 1), (5, 40, 0), (7, 30, 1), (7, 30, 1), (7, 30, 0), (8, 30, 0)]


def test_the_first_of_equal_peaks_counts_with_its_pass() -> None:
    t = timeline([tensor(100, 1, 2), tensor(100, 6, 7)])
    assert (t.peak_s, t.peak_pass, t.margin) == (1, "forward", 0)
    assert timeline([tensor(100, 9, 10)]).peak_pass == "optimizer"
    assert timeline([tensor(100, 6, 7)]).peak_pass == "backward"


def test_tensors_of_like_layers_are_one_kind() -> None:
    names = [f"blocks.{number}.mix" for number in range(3)]
    t = timeline([tensor(9.0, purpose="weights"), *(Allocation("activations", name, 20.0, 0, 9) for name in names)])
    assert t.largest_at_peak(5) == [("activations", "blocks.*.mix", 3, 60.0)]


def test_a_longer_step_has_the_same_memory() -> None:
    t = timeline([tensor(70, 1, 2), tensor(30)])
    longer = t.stretched(3.0)
    assert (longer.peak_s, longer.peak_bytes, longer.step_s) == (3, t.peak_bytes, 30) and t.stretched(1.0) is t


def test_ranks_have_a_title_and_are_found() -> None:
    first, second = timeline([tensor(50)], stages=2), timeline([tensor(99)], ranks=range(4, 5), stage=1, stages=2)
    assert (first.title, second.title) == ("ranks 0-3, stage 1 of 2", "rank 4, stage 2 of 2")
    assert of_rank([first, second], 4) is second and of_rank([first, second], 5) is None
    assert fullest([first, timeline([tensor(99)], memory={"activations": 200.0})]).peak_bytes == 200


def test_json_has_the_peak_and_the_curve() -> None:
    data = timeline([tensor(70, 1, 2), tensor(30, purpose="weights")]).to_json(points=5)
    assert (data["peak_bytes"], data["peak_s"], data["ranks"]) == (107, 1, [0, 3])
    assert data["bytes"] == {"weights": [30] * 5, "activations": [70, 0, 0, 0, 0]} and data["times_s"] == [0, 2, 4, 6, 8]
    assert "bytes" not in timeline([]).to_json(points=0)
