"""The page of a slimmed network has every part, escapes names, and is the same for the same record."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from paceline.errors import UserError
from paceline.reporting.pages.slim_page import render, slim_page, write_page
from paceline.slim_record import FEWER_BITS, Candidate, CurvePoint, LayerLatency, SlimMeasurement, SlimRecord, Width
from slim_records import SLIMMED, WHOLE, deep, record


def titles(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def text_of(page: str) -> str:
    return " ".join(re.sub("<[^>]*>", "", re.sub("</(td|th|p|li)>", " ", page)).split())


def pictures(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(each) for each in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def test_every_part_is_there_and_the_page_repeats() -> None:
    page = render(record())
    parts = ["Before and after", "Latency by layer", "Widths", "Accuracy against latency", "Predicted beside measured"]
    assert titles(page) == [*parts, "Kept whole", "Notes", "Training", "Environment"]
    assert page == render(record()) and len(pictures(page)) == 3
    text = text_of(page)
    for words in (
        "3.20x faster on onnxruntime: 4.00 ms before, 1.25 ms after; accuracy 98.10 % before, 97.80 % after.",
        "lenet5 slimmed to speedup=3x (auto)",
        "Ranges of latencies are quartiles, of accuracies 95 % (Wilson).",
        "98.1 % before; of 360 labels, 95 %: 95.7 to 98.9 %",
        "fc2 the output of the network",
        "plan.json runs/slim/plan.json",
    ):
        assert words in text


def test_the_page_has_the_table_of_smaller_fewer_bits_and_both() -> None:
    fewer = Candidate(FEWER_BITS, "int4", "whole.int4.onnx", SLIMMED, 490_000.0, "yes")
    made = record(candidates=(fewer,))
    assert rows(made, "Smaller, fewer bits, or both")[0][:2] == [FEWER_BITS, "int4"]
    assert "int4 alone meets speedup=3x, nothing removed" in text_of(render(made))


def rows(made: SlimRecord, title: str) -> list[list[str]]:
    return next([list(row) for row in section.rows] for section in slim_page(made).sections if section.title == title)


def test_tables_say_what_the_pictures_show() -> None:
    assert rows(record(), "Latency by layer")[1] == ["conv2", "2.00 ms", "400 µs", "5.00x", "500 µs", "+25.0 %"]
    assert rows(record(), "Widths")[2] == ["fc1", "500", "90", "18.0 %"]
    assert rows(record(), "Predicted beside measured") == [
        ["speedup=2x", "2.00 ms", "2.10 ms", "-4.8 %", "98.0 %"],
        ["speedup=3x, chosen", "1.20 ms", "1.25 ms", "-4.0 %", "97.8 %"],
    ]
    assert "In the median 4.4 % apart." in text_of(render(record()))


def test_the_page_says_how_it_was_trained() -> None:
    assert rows(record(), "Training") == [
        ["data", "digits, 360 labels held out"],
        ["epochs", "whole network 10, path 5, slimmed network 5"],
        ["optimizer", "momentum, rate 0.05, batches of 64"],
        ["workers", "2, gradients terngrad"],
        ["distillation", "share 0.5"],
        ["seed", "7"],
    ]
    assert rows(record(training=None, held_out=0), "Training") == [["data", "digits"]]


def test_what_is_not_known_is_said() -> None:
    page = render(
        record(
            whole=SlimMeasurement(4e-3, 4e-3, 4e-3, 10, 40),
            slimmed=SlimMeasurement(1e-3, 1e-3, 1e-3, 5, 20),
            predicted_s=0.0,
            layers=(LayerLatency("a", 3e-3, 0.0, 0.0),),
            curve=(CurvePoint("whole", 4e-3, 4e-3, None), CurvePoint("size=4MB", 1e-3, 0.0, None)),
            kept={},
            notes=(),
            quantised=None,
        )
    )
    assert "Kept whole" not in page and "Notes" not in titles(page)
    text = text_of(page)
    assert "No accuracy is known, so there is no picture." in text and "Nothing was predicted of this network." in text
    assert "accuracy unknown before, unknown after" in text and "gone" in text


def test_one_network_and_no_layers() -> None:
    page = render(record(curve=record().curve[:1], layers=(), widths=()))
    assert titles(page)[:3] == ["Before and after", "Accuracy against latency", "Predicted beside measured"]
    assert rows(record(curve=()), "Predicted beside measured") == [["slimmed", "1.20 ms", "1.25 ms", "-4.0 %", "97.8 %"]]
    assert "Accuracy against latency" not in titles(render(record(curve=())))


def test_many_layers_are_all_in_the_tables() -> None:
    page = render(deep(60))
    assert "36 other layers" in page and "36 layers that lost less are in the table alone." in text_of(page)
    assert len(rows(deep(60), "Latency by layer")) == len(rows(deep(60), "Widths")) == 60


def test_names_that_are_html() -> None:
    evil = "<img src=x onerror=alert(1)>"
    made = record(
        model=evil,
        data=evil,
        target=evil,
        widths=(Width(evil, 4, 2),),
        layers=(LayerLatency(evil, 1e-3, 1e-3, 1e-3),),
        curve=(CurvePoint(evil, WHOLE.latency_s, 1e-3, 0.9), CurvePoint(evil, SLIMMED.latency_s, 1e-3, SLIMMED.accuracy)),
        kept={evil: evil},
        notes=(evil,),
        environment={evil: evil},
        files={evil: evil},
    )
    page = render(made)
    assert "<img" not in page and page.count("&lt;img") > 10
    assert len(pictures(page)) == 3, "and each is well-formed"


def test_a_prediction_alone_is_no_page() -> None:
    with pytest.raises(ValueError, match="was measured"):
        render(record(slimmed=None))


def test_the_page_is_a_file(tmp_path: Path) -> None:
    path = write_page(record(), tmp_path)
    assert path == tmp_path / "report.html" and path.read_text(encoding="utf-8") == render(record())
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=re.escape("report.html")):
        write_page(record(), tmp_path / "file")
