"""Pictures of a slimmed network: every bar and point stands where its number says."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from paceline.reporting.figures.slim_figures import (
    LAYERS,
    accuracy_against_latency,
    drawn_layers,
    latency_by_layer,
    tail,
    widths_chart,
)
from paceline.slim_record import CurvePoint, LayerLatency, Width
from slim_records import deep, record


def rects(svg: str, kind: str) -> list[float]:
    """Widths of the bars of a kind, but for that of the key."""
    found = [each for each in ElementTree.fromstring(svg).iter("rect") if each.get("class") == kind]
    return [float(each.get("width", "").rstrip("%")) for each in found if each.get("height") != "11"]


def dots(svg: str, kind: str) -> list[tuple[float, float]]:
    found = [each for each in ElementTree.fromstring(svg).iter("circle") if each.get("class") == kind]
    return [(float(each.get("cx", "").rstrip("%")), float(each.get("cy", ""))) for each in found]


def test_bars_are_as_long_as_the_times() -> None:
    svg = latency_by_layer(record().layers)
    longest = 2.0 * 1.04
    assert rects(svg, "other") == pytest.approx([100 * each / longest for each in (1.0, 2.0, 0.7, 0.3)], abs=0.01)
    assert rects(svg, "network") == pytest.approx([100 * each / longest for each in (0.5, 0.4, 0.15, 0.2)], abs=0.01)
    assert rects(svg, "codec") == pytest.approx([100 * each / longest for each in (0.45, 0.5, 0.15, 0.1)], abs=0.01)
    assert "conv2, predicted: 500 µs" in svg and "ms of one run" in svg


def test_a_layer_of_which_nothing_is_predicted_has_no_such_bar() -> None:
    svg = latency_by_layer((LayerLatency("a", 2e-6, 1e-6, 0.0),))
    assert len(rects(svg, "other")) == 1 and not rects(svg, "codec") and "µs of one run" in svg


def test_the_smallest_of_many_layers_are_one_sum() -> None:
    layers = deep(60).layers
    shown = drawn_layers(layers)
    assert len(shown) == LAYERS + 1 and shown[-1].layer == f"{60 - LAYERS} other layers"
    assert shown[:-1] == list(layers[-LAYERS:]), "in their order"
    for name in ("before_s", "after_s", "predicted_s"):
        assert sum(getattr(each, name) for each in shown) == pytest.approx(sum(getattr(each, name) for each in layers))
    alike = [LayerLatency(f"layer {number}", 1e-3, 1e-3, 1e-3 if number else 0.0) for number in range(LAYERS + 3)]
    assert [len(drawn_layers(alike)), drawn_layers(alike)[-1].layer] == [LAYERS + 1, "3 other layers"]
    assert drawn_layers([*alike[1:], alike[0]])[-1].predicted_s == 0, "unknown in one of them is unknown in the sum"


def test_a_sum_that_is_longer_than_every_layer_is_its_text_alone() -> None:
    svg = latency_by_layer(deep(60).layers)
    assert len(rects(svg, "other")) == LAYERS and max(rects(svg, "other")) == pytest.approx(100 / 1.04, abs=0.01)
    assert f"{60 - LAYERS} other layers" in svg
    few = latency_by_layer((*deep(LAYERS).layers, LayerLatency("small", 1e-6, 1e-6, 1e-6)))
    assert len(rects(few, "other")) == LAYERS + 1


def test_nothing_to_draw_is_no_picture() -> None:
    assert latency_by_layer(()) == widths_chart(()) == accuracy_against_latency((), -1) == ""
    assert latency_by_layer((LayerLatency("a", 0.0, 0.0, 0.0),)) == ""
    assert accuracy_against_latency((CurvePoint("whole", 1e-3, 1e-3, None),), -1) == ""


def test_widths_are_bars_of_what_was_and_what_stays() -> None:
    svg = widths_chart(record().widths)
    assert rects(svg, "other") == pytest.approx([100 * each / 510 for each in (20, 50, 500)], abs=0.01)
    assert rects(svg, "network") == pytest.approx([100 * each / 510 for each in (8, 20, 90)], abs=0.01)
    many = tuple(Width(f"layer {number}", 100, 100 - number) for number in range(60))
    shown = widths_chart(many)
    assert len(rects(shown, "other")) == LAYERS and "layer 59:" in shown and "layer 0:" not in shown


def test_points_stand_at_their_latency_and_accuracy() -> None:
    svg = accuracy_against_latency(record().curve, 2)
    high, low = dots(svg, "run-0"), dots(svg, "chosen")
    assert [x for x, _ in (*high, *low)] == pytest.approx([100 * each / (4 * 1.06) for each in (4.0, 2.1, 1.25)], abs=0.01)
    assert high[0][1] < high[1][1] < low[0][1], "a better accuracy stands higher"
    assert [x for x, _ in dots(svg, "codec")] == pytest.approx([100 * each / (4 * 1.06) for each in (2.0, 1.2)], abs=0.01)


@pytest.mark.parametrize("accuracy", [0.0, 0.5, 1.0])
def test_one_point_is_a_picture(accuracy: float) -> None:
    svg = accuracy_against_latency((CurvePoint("whole", 1e-3, 1e-3, accuracy),), -1)
    ((x, y),) = dots(svg, "run-0")
    assert 0 < x < 100 and y >= 0 and "nan" not in svg


def test_points_without_an_accuracy_are_left_out() -> None:
    whole, first, last = record().curve
    svg = accuracy_against_latency((whole, CurvePoint("speedup=2x", 2e-3, 2e-3, None), last), 2)
    assert len(dots(svg, "run-0")) == 1 and len(dots(svg, "chosen")) == 1 and first.name not in svg


def test_of_a_long_name_the_end_is_shown() -> None:
    assert tail("conv1") == "conv1" and tail("") == "the network"
    assert tail("a" * 40 + ".last") == "…" + "a" * 22 + ".last" and len(tail("a" * 99)) == 28


def test_names_are_escaped() -> None:
    evil = '<script>"x"</script>'
    pictures = (
        latency_by_layer((LayerLatency(evil, 1e-3, 1e-3, 1e-3),)),
        widths_chart((Width(evil, 4, 2),)),
        accuracy_against_latency((CurvePoint(evil, 1e-3, 1e-3, 0.5),), 0),
    )
    for svg in pictures:
        ElementTree.fromstring(svg)
        assert "<script" not in svg and "&lt;script&gt;" in svg
