"""Answers as rows: frames, and tables for notebooks."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

import pytest

import paceline
from paceline.tabular import Row, Tabular


class Cells(HTMLParser):
    """The texts of a table's cells, row by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.lines: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.lines.append([])
        elif tag in ("td", "th"):
            self.lines[-1].append("")
        else:
            assert tag in ("table", "thead", "tbody", "p", "strong")

    def handle_data(self, data: str) -> None:
        if self.lines and self.lines[-1]:
            self.lines[-1][-1] += data


class Two(Tabular):
    def rows(self) -> Sequence[Row]:
        return (
            {"name": "<b>", "step_time_s": 0.012, "memory_bytes": 2.0**30, "usd": math.nan},
            {"name": "b", "step_time_s": 1.5, "memory_bytes": 3.0 * 2**30, "usd": 12.0},
        )


def test_a_notebook_shows_units_and_escapes_names() -> None:
    assert Cells(Two()._repr_html_()).lines == [
        ["name", "step time", "memory bytes", "usd"],
        ["<b>", "12.0 ms", "1.00 GiB", "unknown"],
        ["b", "1.50 s", "3.00 GiB", "12.0 $"],
    ]


def test_every_answer_has_rows_of_plain_values() -> None:
    prediction = paceline.predict("resnet-50", "8 A100", global_batch_size=256)
    plan = paceline.plan("resnet-50", "2 A100", batches=(256,), precisions=("bf16",), compressions=("dense",))
    whatif = paceline.whatif("resnet-50", "2x8 A100", changes="nodes=4", network="100Gb/s", global_batch_size=512)
    for answer, count in ((prediction, 1), (plan, len(plan.ranking)), (whatif, 2)):
        rows = answer.rows()
        assert len(rows) == count and len({tuple(row) for row in rows}) == 1
        assert all(isinstance(value, str | int | float) for row in rows for value in row.values())
        assert len(Cells(answer._repr_html_()).lines) == count + 1
    assert prediction.rows()[0]["step_time_s"] == prediction.step_time_s
    assert plan.rows()[0]["time_s"] == plan.best.time_s
    assert whatif.rows()[1]["speedup"] == whatif.changes[0].speedup


def test_what_does_not_fit_says_so_in_a_notebook_too() -> None:
    assert "DOES NOT FIT" in paceline.predict("llama-2-70b", "A100", global_batch_size=1)._repr_html_()


def only(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """As if of both libraries this one alone were installed."""
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    if library:
        module: Any = types.ModuleType(library)
        module.DataFrame = lambda rows: (library, rows)
        monkeypatch.setitem(sys.modules, library, module)
