"""Pages show the results that the benchmarks keep, and the benchmarks keep those of this predictor."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import page_tables
from rows import read
from validation_table import FILES, run

ROOT = Path(__file__).parents[1]
MEASURED = Path(os.environ.get("PACELINE_SHARED", ROOT / "shared")) / "data" / "measured"
RESULTS = ROOT / "benchmarks" / "results" / "validation.csv"


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


@pytest.mark.skipif(not MEASURED.is_dir(), reason="needs the published measurements: PACELINE_SHARED names them")
@pytest.mark.parametrize("name", ["published SimuMax, one node of 8 B200", "published InternEvo, A100"])
def test_the_results_are_of_this_predictor(name: str) -> None:
    """Within a point; sets that take less than a second."""
    if not (MEASURED / f"{FILES[name]}.csv").is_file():
        pytest.skip(f"needs {FILES[name]}.csv in {MEASURED}")
    kept = page_tables.last(read(RESULTS), "set", "seen")[name, "none"]
    done = run(str(MEASURED), name, "none").total
    again = "run python benchmarks/validation_table.py, it is of an earlier predictor"
    assert done["points"] == int(kept["rows"]), again
    assert done["mape"] == pytest.approx(float(kept["mape"]), abs=0.01), again
    assert done["interval_share"] == pytest.approx(float(kept["inside"]), abs=0.01), again
