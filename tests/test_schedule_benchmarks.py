"""Benchmarks of schedules reach what their results say, where the data is at hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import rows
import schedule_better
import schedule_elasticflow
import schedule_pollux
import schedule_sia
import schedule_summary
from schedule_solver import BothSolvers

import paceline
from paceline.scheduling.job import Job
from paceline.scheduling.policies.deadline import deadline
from paceline.scheduling.policies.edf import edf
from paceline.scheduling.policies.registry import POLICIES
from paceline.scheduling.policies.solvers.highs import GAP
from paceline.scheduling.policies.solvers.useful_choices import Choices
from paceline.scheduling.speeds.profiles import read_profiles
from paceline.scheduling.traces.reader import read_trace

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("PACELINE_SHARED", Path(__file__).parents[2] / "shared")) / "data"
TRACE = DATA / "traces" / "elasticflow_195job.csv"
needs_data = pytest.mark.skipif(not TRACE.is_file(), reason=f"needs the trace {TRACE}; PACELINE_SHARED may name another place")


@needs_data
def test_edf_meets_as_many_deadlines_as_the_published_simulator() -> None:
    schedule = schedule_elasticflow.simulated(DATA, partial(edf, largest=True), 0.0, 0.0, rigid=False)
    assert schedule_elasticflow.counts(schedule)["met"] == 19


@needs_data
def test_deadline_meets_more_than_the_published_171_though_restarts_cost_more() -> None:
    met = schedule_elasticflow.counts(schedule_elasticflow.simulated(DATA, deadline, 0.0, 16.0, rigid=False))
    assert met["met"] >= 175 and met["late"] == 0


@pytest.mark.full
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
    for part in schedule_pollux.PARTS:
        assert {case["policy"] for case in schedule_pollux.cases(part)} <= POLICIES.keys()


def test_the_docs_tables_are_those_of_the_rows() -> None:
    results = ROOT / "benchmarks" / "results"
    docs = (ROOT / "docs" / "scheduling.md").read_text().splitlines()
    better, measured = rows.read(results / "schedule_better.csv"), rows.read(results / "schedule_pollux.csv")
    tables = [
        schedule_summary.targets(results),
        schedule_summary.better(better),
        schedule_summary.usual(measured),
        *(schedule_summary.errors(measured, kind) for kind in schedule_summary.KINDS),
    ]
    lines = "\n".join(tables).splitlines()
    assert len(lines) > 60 and not [line for line in lines if line not in docs]


def test_the_picture_of_errors_draws_every_policy_that_errs(tmp_path: Path) -> None:
    made = [
        {"part": "error", "policy": policy, "error": error, "work_error": 0.0, "avg_jct_s": 100 + slope * error}
        for policy, slope in (("paceline", 50), ("las", 0))
        for error in (0.0, 0.1, 0.4)
    ]
    assert schedule_summary.errors(made, "error").splitlines()[2:] == ["| paceline | +5.0% | +20.0% |", "", "Unchanged: las."]
    schedule_summary.picture(made, tmp_path / "errors.svg")
    assert (tmp_path / "errors.svg").stat().st_size > 5000


@pytest.mark.long
@needs_data
def test_better_short() -> None:
    """One workload of a setting each: paceline takes less time than what stands beside it."""
    profiles = read_profiles(DATA / "profiles")
    row = next(iter(schedule_better.measured(DATA, profiles, "pollux 0.5x", ["1"])))
    assert row["jobs"] == 80 and row["ratio_low"] < row["ratio"] < row["ratio_high"] < 1 and row["high_s"] < 0


@pytest.mark.full
@needs_data
def test_better_short_on_several_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of Sia's jobs, with the fairness of each."""
    profiles = read_profiles(DATA / "profiles")
    for module in (schedule_better, schedule_sia):
        name = "sia_jobs" if module is schedule_better else "jobs"
        monkeypatch.setattr(module, name, partial(_tenth, schedule_sia.jobs))
    row = next(iter(schedule_better.measured(DATA, profiles, "sia helios", ["1"])))
    assert row["jobs"] == 16 and row["beside"] == "our sia" and 0 < row["worst_ftf"] < 3


def _tenth(jobs: Callable[[Path, str, str], list[Job]], data: Path, workload: str, policy: str) -> list[Job]:
    return jobs(data, workload, policy)[::10]


@needs_data
def test_published_profiles_are_predicted_by_the_name_of_their_models() -> None:
    """What ``schedule --profiles DIR --knowledge predicted`` does."""
    jobs = read_trace(DATA / "traces" / "pollux_workloads.csv", {"set": "0.5x", "workload": "1"}).jobs[:8]
    simulated = paceline.schedule(jobs, "2x4xT4, 50Gb/s", "paceline", profiles=DATA / "profiles", knowledge="predicted")
    assert simulated.metrics.ended == 8 and simulated.knowledge == "predicted"


def test_both_solvers_of_decisions_are_compared_on_the_same_choices() -> None:
    rng = np.random.default_rng(2)
    job, devices = np.repeat(np.arange(12), 4), np.tile([1, 2, 4, 8], 12)
    cost = -(devices ** rng.uniform(0.4, 0.9, len(job)))
    choices = Choices(job, devices, np.tile([0, 1, 0, 1], 12), cost, np.zeros(len(job), bool))
    solver = BothSolvers(priced=True, compares=True)
    taken = solver(choices, np.array([9, 9]))
    assert taken is not None and taken.any() and all(seconds > 0 for seconds in solver.seconds.values())
    assert solver.beyond == [pytest.approx(0.0, abs=2 * GAP)]
