"""A picture whose width follows the page: shares of the width, round ticks, texts where they fit."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.reporting.figures.plot import Plot, Scale

ENDS = st.tuples(st.floats(1e-6, 1e9), st.floats(1e-6, 1e9)).map(sorted)


@given(ENDS, st.booleans(), st.integers(2, 9))
def test_ticks_are_few_and_within_the_scale(ends: list[float], log: bool, most: int) -> None:
    scale = Scale(ends[0], ends[1], log)
    ticks = scale.ticks(most)
    assert len(ticks) <= most + 1 and ticks == sorted(set(ticks))
    room = 1e-6 * scale.high
    assert all(scale.low - room <= tick <= scale.high + room for tick in ticks)
    assert all(0 <= scale.share(tick) <= 1 for tick in ticks)


@pytest.mark.parametrize(
    ("scale", "ticks"),
    [
        (Scale(0, 10), [0, 2, 4, 6, 8, 10]),
        (Scale(0, 0.13), [0, 0.05, 0.1]),
        (Scale(1, 100, log=True), [1, 3, 10, 30, 100]),
        (Scale(3, 17, log=True), [5, 10, 15]),
    ],
)
def test_ticks_are_round(scale: Scale, ticks: list[float]) -> None:
    assert scale.ticks(5) == pytest.approx(ticks)


def test_a_logarithmic_scale_has_equal_steps_for_equal_factors() -> None:
    scale = Scale(1, 16, log=True)
    assert [scale.share(2.0**n) for n in range(5)] == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert scale.share(0.1) == 0 and scale.share(99) == 1


def test_a_text_is_written_where_it_fits() -> None:
    plot = Plot()
    assert plot.fitting(0, 10, 1.0, "forward")
    assert plot.fitting(0, 10, 0.1, "back")
    assert not plot.fitting(0, 10, 0.01, "optimizer")
    svg = plot.svg(20, "a <label>")
    ElementTree.fromstring(svg)
    assert "optimizer" not in svg and 'class="wide-only" x="0.00%" y="10">back' in svg and "a &lt;label&gt;" in svg


def test_what_a_shape_says_is_escaped() -> None:
    plot = Plot()
    plot.rect(0.25, 0, 0.5, 10, "compute", "<b>")
    assert '<title>&lt;b&gt;</title><rect class="compute" x="25.00%" y="0" width="50.00%" height="10"/>' in plot.svg(10, "")
