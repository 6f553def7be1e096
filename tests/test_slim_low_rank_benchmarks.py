"""The benchmark of force and low rank in its short form, and the published figures."""

from __future__ import annotations

import copy
import csv
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.slimming.methods.low_rank_choice import RankChoice, Split
from paceline.slimming.slim_plan import SlimPlan

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_without_their_mean_filters_that_differ_little_have_as_many_ranks() -> None:
    import slim_low_rank

    start = nn.Sequential(nn.Conv2d(3, 8, 3))
    model = copy.deepcopy(start)
    with torch.no_grad():
        model[0].weight += 100  # type: ignore[operator]
    found = slim_low_rank.figures(
        start, model, RankChoice(SlimPlan({}, {}, {}), {}, {"0": Split("whole", (), 0.0, 1.0)}, {}, 1.0)
    )
    before, after = re.findall(r"\d+", str(found["ranks_at_5_percent"]))[1:]
    assert int(before) > int(after) == 1
    before, after = re.findall(r"\d+", str(found["ranks_without_mean"]))[1:]
    assert before == after != "1"


@pytest.mark.full
def test_low_rank_benchmark_short(tmp_path: Path) -> None:
    import slim_low_rank

    out = tmp_path / "s.csv"
    slim_low_rank.main(["--short", "--out", str(out)])
    found = rows(out)
    ways = [("1.05", "", "svd tucker"), ("", "0.2", "svd")]
    shown = [(row["budget_speedup"], row["error"], row["forms"], row["arm"]) for row in found]
    assert shown == [(*way, arm) for way in ways for arm in ("none", "L2")]
    for row in found[2:]:
        splits = re.findall(r"(\w+) (\w+) [\dx]+ \(([\d.]+)\)", row["splits"])
        assert "conv3" in {name for name, _, _ in splits}
        assert all(form == "svd" and float(error) <= 0.2 for _, form, error in splits)
    for row in found:
        assert float(row["us"]) > 0 and "conv3 " in row["ranks_at_5_percent"] and 0 <= float(row["test"]) <= 100


def test_published_figures_name_their_source_and_whether_it_was_read() -> None:
    published = rows(ROOT / "validation" / "edge" / "force.csv")
    assert {row["status"] for row in published} == {"read", "unverified"} and all(row["source"] for row in published)
    speedups = {row["what"]: float(row["value"]) for row in published if row["unit"] == "x"}
    assert sorted(speedups.values()) == [2.0, 4.05]
