"""The benchmark of published sizes: its short form, the sizes that are left, and the table that stands beside the figures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

torch = pytest.importorskip("torch", reason="needs torch: pip install 'paceline[train]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'paceline[slim]'")

import edge_published  # noqa: E402
from rows import read  # noqa: E402


@pytest.mark.full
def test_short_form_writes_a_row_for_each_paper(tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    edge_published.main(["--short", "--out", str(out)])
    rows = read(out)
    assert [row["paper"] for row in rows] == ["SSL", "ISS", "ISS", "SkimCaffe", "SkimCaffe"]
    assert all(row["whole_ms"] > 0 < row["ms"] for row in rows)


@pytest.mark.parametrize(
    ("width", "zero_percent", "groups", "expected"),
    [(256, 76.9, 1, 56), (384, 84.7, 2, 64), (96, 0, 1, 96), (64, 99.9, 1, 8), (256, 12.9, 2, 224)],
)
def test_what_is_left_of_a_width_is_a_multiple_of_8_in_each_group(
    width: int, zero_percent: float, groups: int, expected: int
) -> None:
    assert edge_published.left(width, zero_percent, groups) == expected


def test_the_table_beside_the_figures_is_of_the_rows() -> None:
    table = (ROOT / "validation" / "edge" / "README.md").read_text(encoding="utf-8")
    for row in read(ROOT / "benchmarks" / "results" / "edge_published.csv"):
        assert f"| {row['paper']} | {row['what']} | {row['published_speedup']} | {row['speedup']:.1f} |" in table
