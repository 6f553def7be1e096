"""Chrome traces: what goes in comes out, to the nanosecond, and Perfetto finds the names it needs."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from paceline.chrome_trace import chrome_trace, read_chrome_trace
from paceline.errors import UserError
from paceline.record import Event

times = st.floats(0, 1e4, allow_nan=False)
events = st.builds(
    Event,
    name=st.text(max_size=12),
    lane=st.sampled_from(["compute", "codec", "network", "disk"]),
    start_s=times,
    duration_s=times,
    rank=st.integers(0, 5),
)


@given(st.dictionaries(st.text(max_size=12), st.lists(events, max_size=8), max_size=4))
def test_round_trip_is_exact_to_a_nanosecond(timelines: dict[str, list[Event]]) -> None:
    back = read_chrome_trace(json.loads(json.dumps(chrome_trace(timelines))))
    assert list(back) == list(timelines)
    for label, given_events in timelines.items():
        assert len(back[label]) == len(given_events)
        for a, b in zip(given_events, back[label], strict=True):
            assert (a.name, a.lane, a.rank) == (b.name, b.lane, b.rank)
            assert abs(a.start_s - b.start_s) <= 1e-9
            assert abs(a.duration_s - b.duration_s) <= 1.01e-9  # both ends are rounded


@given(st.lists(st.floats(1e-9, 1e-2), min_size=1, max_size=50))
def test_what_follows_without_a_gap_does_not_overlap(durations: list[float]) -> None:
    made, clock = [], 0.0
    for seconds in durations:
        made.append(Event(name="a", lane="compute", start_s=clock, duration_s=seconds))
        clock += seconds
    bars = [e for e in chrome_trace({"run": made})["traceEvents"] if e["ph"] == "X"]
    for one, after in itertools.pairwise(bars):
        assert round(1000 * one["ts"]) + round(1000 * one["dur"]) == round(1000 * after["ts"])


def test_format_has_what_perfetto_reads() -> None:
    trace = chrome_trace({"dense": samples.timeline(4e-3, 0, 11e-3), "terngrad": samples.timeline(4e-3, 1e-3, 1e-3)})
    assert trace["displayTimeUnit"] == "ms"
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert names == ["dense, rank 0", "dense, rank 1", "terngrad, rank 0", "terngrad, rank 1"]
    lanes = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name" and e["pid"] == 3]
    assert lanes == ["compute", "codec", "network"]
    bars = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert bars
    assert all({"name", "cat", "ph", "pid", "tid", "ts", "dur"} <= e.keys() for e in bars)
    assert max(e["ts"] + e["dur"] for e in bars) == pytest.approx(15.04e3, rel=0.2)  # microseconds


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"traceEvents": 3},
        {"traceEvents": [{"ph": "X"}]},
        {"traceEvents": [{"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 0, "name": "orphan"}]},
    ],
)
def test_foreign_trace_is_a_user_error(bad: dict[str, object]) -> None:
    with pytest.raises(UserError, match="not a Chrome trace"):
        read_chrome_trace(bad)
