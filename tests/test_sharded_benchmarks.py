"""The benchmark of sharded training in short form, and what its rows show."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from paceline.strategy import Strategy
from paceline.workload import Workload
from test_benchmarks import RESULTS, ROOT, rows, run

sys.path.insert(0, str(ROOT / "benchmarks"))

import gather_accuracy
from rows import read

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
        pytest.skip("needs benchmarks/results/sharded_lab.csv: run benchmarks/sharded_lab.py")
    found = rows(path)
    assert len(found) == 38 and sum(row["shard_devices"] == "2" for row in found) == 12
    for row in found:
        assert row["metered_bytes"] == row["predicted_bytes"], row
        assert abs(int(row["socket_bytes"]) - int(row["metered_bytes"])) < 0.1 * int(row["metered_bytes"]), row


def test_gather_accuracy_short(tmp_path: Path) -> None:
    """Bytes of a step are those that the strategy counts, and no row is run twice."""
    out = tmp_path / "gather.csv"
    short = ("--seeds", "1", "--epochs", "1", "--batch", "64", "--lr", "0.02", "--out", str(out))
    run("gather_accuracy.py", *short, "--bits", "8")
    before = rows(out)
    table = run("gather_accuracy.py", *short, "--bits", "0", "8")
    whole, rounded = sorted(rows(out), key=lambda row: int(row["gather_bits"]))
    assert [rounded] == before and "| digits | 8 | 1 |" in table and "| digits | 32 | 1 |" in table
    net = Workload.named("lenet5")
    for row in (whole, rounded):
        bits = int(row["gather_bits"])
        strategy = Strategy.of(
            world_size=2,
            global_batch_size=64,
            sharding="zero3",
            bucket_bytes=1 << 16,
            **({"gather_bits": bits} if bits else {}),
        )
        assert int(row["step_bytes"]) == strategy.wire_bytes_per_device(net.parameters, net.ready_order)
        assert 0.1 < float(row["accuracy"]) < 1 and abs(float(row["accuracy"]) - float(row["accuracy_gathered"])) < 0.1
    assert whole["accuracy"] == whole["accuracy_gathered"], "what travels in full is what its owner keeps"


def test_the_page_shows_what_gathered_weights_cost() -> None:
    found = read(RESULTS / "gather_accuracy.csv")
    assert {(row["data"], row["gather_bits"], row["seed"]) for row in found} == set(
        itertools.product(("digits", "fashion-mnist"), (0, 16, 8), range(3))
    )
    page = (RESULTS.parent / "README.md").read_text(encoding="utf-8").splitlines()
    assert all(line in page for line in gather_accuracy.table(found).splitlines())
    pages = "".join(path.read_text(encoding="utf-8") for path in (RESULTS.parent / "README.md", ROOT / "docs" / "sharded.md"))
    whole = {(row["data"], row["seed"]): row["accuracy"] for row in found if not row["gather_bits"]}
    worst = min(row["accuracy"] - whole[row["data"], row["seed"]] for row in found)
    assert pages.count(f"at most {-100 * worst:.2f} points") == 2
