"""The benchmark of sharded training in short form, and what its rows show."""

from __future__ import annotations

from pathlib import Path

import pytest

from test_benchmarks import RESULTS, rows, run

pytestmark = pytest.mark.full


def test_sharded_lab_short(tmp_path: Path) -> None:
    out = tmp_path / "sharded.csv"
    short = ("--hosts", "2", "--links", "1Gb/s", "--steps", "2", "--warm", "1", "--pace", "0.02", "--cases", "5")
    assert "predicted" in run("sharded_lab.py", *short, "--out", str(out))
    found = rows(out)
    assert [row["sharding"] for row in found] == ["ddp", "zero2", "zero2", "zero2"]
    assert all(row["metered_bytes"] == row["predicted_bytes"] for row in found)


def test_bytes_of_the_committed_rows_are_those_predicted() -> None:
    path = RESULTS / "sharded_lab.csv"
    if not path.exists():
        pytest.skip("benchmarks/results/sharded_lab.csv is not there; benchmarks/sharded_lab.py makes it")
    found = rows(path)
    assert len(found) == 26
    for row in found:
        assert row["metered_bytes"] == row["predicted_bytes"], row
        assert abs(int(row["socket_bytes"]) - int(row["metered_bytes"])) < 0.1 * int(row["metered_bytes"]), row
