"""Published runs of local steps: rows with sources, and the one that is measured without a link."""

from __future__ import annotations

import sys
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parents[2] / "validation/local"
ROWS = tomllib.loads((HERE / "published.toml").read_text(encoding="utf-8"))["row"]


def compare() -> ModuleType:
    spec = spec_from_file_location("local_compare", HERE / "compare.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_row_has_a_source_and_says_why_it_is_not_predicted() -> None:
    assert len({row["id"] for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert "arXiv" in row["source"] and row["published"] > 0
        assert "command" in row or row["note"].startswith("not predicted: ")


def test_a_worker_of_eight_devices_trains_as_fast_as_published() -> None:
    row = next(row for row in ROWS if row["id"] == "intellect-1 step")
    assert compare().predicted(row) == pytest.approx(row["published"], rel=0.1)


@pytest.mark.long
def test_the_table_of_the_readme_is_what_the_script_prints() -> None:
    text = (HERE / "README.md").read_text(encoding="utf-8")
    for row in compare().scored():
        assert row.predicted is None or f"{row.predicted:,.3g}" in text or f"{row.predicted:,.0f}" in text
