"""Adaptation without labels: a short form of the benchmark, and what its committed rows must say."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

pytest.importorskip("torch", reason="needs torch: pip install 'paceline[train]'")

import domain_adaptation  # noqa: E402
from rows import read  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "domain_adaptation.csv"


@pytest.mark.full
def test_a_short_form_writes_each_row_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "d.csv"
    arguments = ["--short", "--seeds", "3", "--out", str(out), "--parts", "adapted", "digits", "slimmed"]
    domain_adaptation.main(arguments)
    rows = read(out)
    assert [row["method"] for row in rows[:7]] == ["none", "statistics", "all"] * 2 + ["all"]
    assert (rows[6]["source"], rows[6]["target"], rows[6]["steps"]) == ("enlarged", "blurred", 4)
    assert [(row["network"], row["width"]) for row in rows[7:]] == [
        (name, width) for width in (0.5, 0.25, 0.125) for name in ("conv-m slimmed", "conv-m")
    ]
    for slimmed, small in zip(rows[7::2], rows[8::2], strict=True):
        assert slimmed["parameters"] == small["parameters"] and slimmed["steps"] == small["steps"] == 4
    assert rows[0]["source_accuracy"] == rows[1]["source_accuracy"] and {row["seed"] for row in rows} == {3}
    before = out.read_text()
    domain_adaptation.main(arguments)
    assert out.read_text() == before, "rows that are there are not run again"
    capsys.readouterr()
    domain_adaptation.main(["--table", "--out", str(out)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines if " to " in line] == [row["network"] for row in rows]


@pytest.mark.long
def test_networks_of_other_blocks_have_as_many_parameters() -> None:
    for width in (0.5, 0.125):
        ours, plain, fire = (
            domain_adaptation.size(domain_adaptation.network(kind, width)) for kind in ("conv-m", "plain", "fire")
        )
        assert plain == ours and fire == pytest.approx(ours, rel=0.05)


def test_usps_is_read_without_its_labels() -> None:
    rows = [row for row in read(RESULTS) if row["part"] == "adapted"]
    on_target = {
        method: [row["target_accuracy"] for row in rows if row["method"] == method] for method in ("none", "statistics", "all")
    }
    assert {len(found) for found in on_target.values()} == {5}
    assert statistics.median(on_target["all"]) >= 90 > statistics.median(on_target["none"])
