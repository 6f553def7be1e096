"""Pictures of a report: ids of their own, the page's colours, and nothing that a name could break."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import samples
from paceline.reporting.figures.report_figures import PALETTE, canvas, curves, histogram, to_svg

EVIL = '<script>"&'


def test_a_picture_is_well_formed_and_its_ids_are_its_own() -> None:
    svg = curves({"dense": [(1, 0.5), (2, 0.9)], EVIL: [(1, 0.4)]}, "accuracy", EVIL, "accuracy", percent=True)
    ElementTree.fromstring(svg)
    assert "<script" not in svg and "<style" not in svg and "<!--" not in svg
    assert all(name.startswith("accuracy-") for name in re.findall(r'(?<= id=")[^"]*', svg))
    assert set(re.findall(r'href="#([^"]*)"', svg)) <= set(re.findall(r'(?<= id=")[^"]*', svg))


def test_colours_are_the_page_s() -> None:
    svg = curves({"dense": [(1, 0.5), (2, 0.9)]}, "loss", "loss", "loss")
    assert "var(--run-0)" in svg and not [colour for colour in PALETTE.values() if colour in svg]


def test_a_tooltip_is_of_its_own_artist() -> None:
    with canvas(2, 2) as figure:
        (line,) = figure.add_subplot().plot([0, 1], [0, 1])
        line.set_gid("a-line")
        svg = to_svg(figure, "p", "label", {"a-line": EVIL, "nobody": "x"})
    assert '<g id="p-a-line"><title>&lt;script&gt;&quot;&amp;</title>' in svg and "<title>x</title>" not in svg


def test_every_stage_of_a_gradient_has_its_panel() -> None:
    svg = histogram(samples.histogram(), "h", "stages")
    ElementTree.fromstring(svg)
    assert 'aria-label="stages"' in svg
