"""Pictures of an answer: every line, point and bar that was given is there, and the label says the ends."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from paceline.reporting.figures.answer_figures import ScalingPoint, front, gains, memory_bar, scaling, shares


def line(*counts: int) -> list[ScalingPoint]:
    return [ScalingPoint(n, 100.0 * n**0.9, 90.0 * n**0.9, 110.0 * n**0.9) for n in counts]


def test_the_label_says_where_each_line_ends() -> None:
    svg = scaling({"weak": line(1, 2, 4, 8), "strong": line(1, 2)}, asked_for=4)
    ElementTree.fromstring(svg)
    assert "weak: 650 samples/s on 8; strong: 187 samples/s on 2" in svg


@pytest.mark.parametrize("best", [-1, 0, 1])
def test_every_strategy_of_the_front_is_a_point(best: int) -> None:
    svg = front([(10.0, 5.0, "fast <1>"), (20.0, 3.0, "cheap")], best)
    ElementTree.fromstring(svg)
    assert "fast &lt;1&gt;" in svg and "cheap" in svg


def test_gains_and_distributions_are_drawn() -> None:
    for svg in (
        gains([("nodes x 2", 1.8, 1.5, 2.0), ("slower", 0.7, 0.6, 0.8)]),
        shares([0.2, 0.5, 0.3], "staleness"),
        shares([1.0], "staleness"),
    ):
        ElementTree.fromstring(svg)


def test_memory_is_a_bar_whose_parts_sum_to_what_a_device_holds() -> None:
    svg = memory_bar({"weights": 30 * 2.0**30, "activations": 40 * 2.0**30, "other": 0.0}, 60 * 2.0**30)
    ElementTree.fromstring(svg)
    assert "Memory of a device: 70.0 GiB of 60.0 GiB" in svg and "activations: 40.0 GiB, 67% of the device" in svg
    assert 'class="limit"' in svg and "other" not in svg
    assert 'class="limit"' not in memory_bar({"weights": 2.0**30}, 2.0**31)
