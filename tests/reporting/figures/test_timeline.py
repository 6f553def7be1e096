"""Steps on a time axis: bars are joined without losing an end, and each is drawn with its name."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from paceline.record import Event
from paceline.reporting.figures.timeline import StepTimeline, draw, merged, one_rank, unit_of


def test_merged_bars_end_where_the_step_ends() -> None:
    events = [Event(name=f"forward l{n}", lane="compute", start_s=n, duration_s=1.0) for n in range(500)]
    events += [Event(name=f"backward l{n}", lane="compute", start_s=1000.0 - n, duration_s=1.0) for n in range(500)]
    few = merged(events, 50)
    assert 40 <= len(few) <= 52
    assert few[-1].end_s == max(e.end_s for e in events)
    assert few[0].name == "forward l0 to l19"
    assert all(e.name.startswith(("forward", "backward")) for e in few)


EVENTS = st.lists(
    st.builds(
        Event,
        name=st.sampled_from(("forward a", "forward b", "backward a", "push")),
        lane=st.sampled_from(("compute", "network")),
        start_s=st.floats(0, 10),
        duration_s=st.floats(0, 1),
        rank=st.integers(0, 3),
    ),
    max_size=40,
)


@given(EVENTS, st.integers(1, 10))
def test_joined_bars_begin_with_the_first_and_say_which_they_are(events: list[Event], most: int) -> None:
    bars = merged(events, most)
    for lane in {event.lane for event in events}:
        own, drawn = ([e for e in group if e.lane == lane] for group in (events, bars))
        assert min(e.start_s for e in own) == min(e.start_s for e in drawn) and len(drawn) <= len(own)
        assert {e.name.partition(" ")[0] for e in own} == {e.name.partition(" ")[0] for e in drawn}
    if len(events) <= most:
        assert sorted(bars, key=repr) == sorted(events, key=repr)


@given(EVENTS)
def test_one_worker_stands_for_the_others(events: list[Event]) -> None:
    kept = one_rank(events)
    assert {e.rank for e in kept} == ({min(e.rank for e in events)} if events else set())


@given(st.floats(1e-9, 1e6))
def test_a_unit_leaves_digits_before_the_point(longest: float) -> None:
    scale, unit = unit_of(longest)
    assert (scale, unit) in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")) and (longest >= scale or unit == "µs")
    assert longest / scale < 1000 * (1 + 1e-9) or unit == "s"


def test_every_group_and_lane_is_on_the_picture() -> None:
    step = (
        Event(name="forward <1>", lane="compute", start_s=0.0, duration_s=0.5, rank=0),
        Event(name="push", lane="network", start_s=0.5, duration_s=0.001, rank=0),
        Event(name="odd", lane="of its own", start_s=0.6, duration_s=0.2, rank=0),
    )
    svg = draw([StepTimeline("predicted", step, 1.0), StepTimeline("measured", step, math.nan)], "two steps")
    assert svg.startswith('<svg class="plot lanes" role="img" aria-label="two steps"')
    assert svg.count("<title>push: 1.00 ms, from 500 ms to 501 ms</title>") == 2
    assert "forward &lt;1&gt;: 500 ms" in svg and "<1>" not in svg


def test_a_joined_bar_crosses_no_gap_that_can_be_seen_and_says_how_full_it_is() -> None:
    """Devices that wait between all layers: neither row is drawn as if it were full."""
    units = range(300)
    bars = [Event(name=f"forward l{n}", lane="compute", start_s=n, duration_s=0.75) for n in units]
    bars += [Event(name="wait for gather", lane="wait", start_s=n + 0.75, duration_s=0.25) for n in units]
    bars += [Event(name="overlap loss", lane="wait", start_s=300, duration_s=600)]
    few = merged(bars)
    compute = [bar for bar in few if bar.lane == "compute"]
    waited = [bar for bar in few if bar.name.startswith("wait for gather")]
    assert len(compute) < 100 and compute[0].name.endswith("% of the time)")
    assert few[-1] == bars[-1], "another wait is not joined"
    for drawn, lane in ((compute, 225.0), (waited, 75.0)):
        shares = [float(bar.name.rpartition("(")[2].partition("%")[0]) / 100 for bar in drawn]
        assert math.isclose(sum(s * bar.duration_s for s, bar in zip(shares, drawn, strict=True)), lane, rel_tol=0.05)
    wide = [Event(name=f"forward l{n}", lane="compute", start_s=n, duration_s=0.5) for n in range(150)]
    assert len(merged(wide)) == 150, "gaps that can be seen stay"
