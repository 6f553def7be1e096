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


def test_the_kernel_is_ahead_from_the_sparsity_that_the_roofline_said() -> None:
    """What docs/slim.md says of the rows."""
    with (ROOT / "benchmarks" / "results" / "sparse_convolution.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    ahead = [row for row in rows if float(row["sparsity"]) >= float(row["predicted_gains_from"])]
    assert len({row["layer"] for row in ahead}) == 11
    assert all(float(row["kernel_ms"]) < float(row["ort_dense_ms"]) for row in ahead)
    behind = [row for row in ahead if float(row["ort_sparse_ms"]) >= float(row["ort_dense_ms"])]
    assert len(behind) == 1 and float(behind[0]["ort_sparse_ms"]) < 1.003 * float(behind[0]["ort_dense_ms"])
    at_90 = [float(row["ort_dense_ms"]) / float(row["kernel_ms"]) for row in rows if row["sparsity"] == "0.9"]
    assert (round(min(at_90), 1), round(max(at_90), 1)) == (3.4, 5.2)
    assert sum(float(row["shrunk_ms"]) < float(row["kernel_ms"]) for row in rows) == 321 and len(rows) == 330
