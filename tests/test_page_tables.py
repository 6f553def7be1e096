"""Pages show the results that the benchmarks keep."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import page_tables

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", page_tables.PAGES)
def test_the_tables_of_a_page_are_those_of_the_results(page: str) -> None:
    shown = (ROOT / page).read_text(encoding="utf-8")
    assert page_tables.written(page, shown) == shown, "run python benchmarks/page_tables.py"


def test_a_table_is_replaced_whole_and_the_rest_stays() -> None:
    page = "text\n| a | b |\n|---|---|\n| 1 | 2 |\n\n| a |\nend"
    assert page_tables.replaced(page, ["| a | b |", "|---|---|", "| 3 | 4 |", "| 5 | 6 |"]) == (
        "text\n| a | b |\n|---|---|\n| 3 | 4 |\n| 5 | 6 |\n\n| a |\nend"
    )
    with pytest.raises(ValueError, match="no table"):
        page_tables.replaced(page, ["| c |"])
