"""The benchmark of slimmed residual networks in its short form."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))


@pytest.mark.full
def test_vision_benchmark_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import slim_vision

    out = tmp_path / "rows.csv"
    monkeypatch.setattr(sys, "argv", ["slim_vision.py", "--short", "--out", str(out)])
    monkeypatch.setitem(sys.modules, "torch_pruning", None)  # no dependency: its row is left out
    slim_vision.main()
    with out.open(newline="", encoding="utf-8") as file:
        rows = {row["way"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["whole", "paceline", "from scratch"]
    assert int(rows["paceline"]["parameters"]) < int(rows["whole"]["parameters"])
    assert float(rows["paceline"]["predicted_ms"]) > 0 and rows["whole"]["predicted_ms"] == ""
