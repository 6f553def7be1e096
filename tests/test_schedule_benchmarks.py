"""Benchmarks of schedules reach what their results say, where the data is at hand."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import rows
import schedule_elasticflow
import schedule_pollux

from paceline.scheduling.policies.deadline import deadline
from paceline.scheduling.policies.edf import edf
from paceline.scheduling.policies.registry import POLICIES

DATA = Path(os.environ.get("PACELINE_SHARED", Path(__file__).parents[2] / "shared")) / "data"
TRACE = DATA / "traces" / "elasticflow_195job.csv"
needs_data = pytest.mark.skipif(not TRACE.is_file(), reason=f"no trace {TRACE}; PACELINE_SHARED may name another place")


@needs_data
def test_edf_meets_as_many_deadlines_as_the_published_simulator() -> None:
    schedule = schedule_elasticflow.simulated(DATA, partial(edf, largest=True), 0.0, 0.0, rigid=False)
    assert schedule_elasticflow.counts(schedule)["met"] == 19


@needs_data
def test_deadline_meets_more_than_the_published_171_though_restarts_cost_more() -> None:
    met = schedule_elasticflow.counts(schedule_elasticflow.simulated(DATA, deadline, 0.0, 16.0, rigid=False))
    assert met["met"] >= 175 and met["late"] == 0


@needs_data
def test_pollux_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One small workload under one policy of each part."""
    out = tmp_path / "s.csv"
    few = ["--loads", "0.5x", "--workloads", "1", "--data", str(DATA), "--out", str(out)]
    monkeypatch.setattr(schedule_pollux, "cases", lambda part: [{"policy": "las"}])
    monkeypatch.setattr(sys, "argv", ["schedule_pollux.py", *few])
    schedule_pollux.main()
    (row,) = rows.read(out)
    assert row["jobs"] == 80 and abs(row["ratio"] - 1) < 0.05 and row["rank_correlation"] > 0.9


def test_every_part_names_policies_that_exist() -> None:
    for part in ("fidelity", "better", "error", "profiles"):
        assert {case["policy"] for case in schedule_pollux.cases(part)} <= POLICIES.keys()


def test_the_docs_table_of_paceline_is_that_of_the_rows() -> None:
    root = Path(__file__).parents[1]
    table = (root / "docs" / "scheduling.md").read_text()
    made = [row for row in rows.read(root / "benchmarks/results/schedule_pollux.csv") if row["part"] == "better"]
    groups: dict[tuple[str, str], list[dict[str, float]]] = {}
    for row in made:
        if row["load"] == "1.0x":
            groups.setdefault((row["knowledge"], row["work"]), []).append(row)
    assert len(groups) == 6
    for group in groups.values():
        ours, theirs = (sum(row[name] for row in group) / 4 for name in ("avg_jct_s", "published_avg_s"))
        tail = sum(row["p99_ratio"] for row in group) / 4
        assert len(group) == 4 and f"{ours:,.0f} s, {ours / theirs:.2f} ({tail:.2f})" in table
