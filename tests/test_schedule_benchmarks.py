"""The benchmark of ElasticFlow's trace reaches what its results say, where the data is at hand."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import schedule_elasticflow

from paceline.scheduling.policies.deadline import deadline
from paceline.scheduling.policies.edf import edf

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
