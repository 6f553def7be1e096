"""A short form of the benchmark of sparse convolution."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))


@pytest.mark.full
def test_sparse_convolution_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sparse_convolution

    out = tmp_path / "s.csv"
    sparse_convolution.main(["--short", "--out", str(out)])
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["sparsity"] for row in rows] == ["0.5", "0.9"]
    assert all(float(row[f"{name}_ms"]) > 0 for row in rows for name in sparse_convolution.CONTENDERS)
    assert "of dense: kernel" in capsys.readouterr().out


def test_crossings_lie_between_sparsities() -> None:
    from sparse_convolution import gains_from, layer, shrunk

    least = [{"kernel": kernel, "ort_dense": 1.0} for kernel in (1.5, 1.1, 0.9, 0.5)]
    assert gains_from([0.2, 0.4, 0.6, 0.8], least) == pytest.approx(0.5)
    assert gains_from([0.6, 0.8], least[2:]) == 0.6, "ahead from the lowest on"
    assert gains_from([0.2, 0.4], least[:2]) == 1.0
    narrow = shrunk(layer(64, 128, 56, groups=2), 0.75)
    assert narrow.weight == (64, 16, 3, 3) and narrow.image == (1, 32, 56, 56)
