"""``paceline.schedule`` takes names where a person would write one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.errors import UserError
from paceline.scheduling.fleet import Outage
from paceline.scheduling.simulate.schedule import ClusterSettings
from paceline.scheduling.verb import scenario
from schedule_toys import JOBS, TRACE, job


def test_names_are_values() -> None:
    named = paceline.schedule(TRACE, "2x4xT4", "las")
    asked = scenario(TRACE, "2x4xT4")
    assert repr(named.schedule.outcomes) == repr(asked.run("las").schedule.outcomes)
    assert named.metrics.ended == named.metrics.jobs == 12


def test_jobs_of_ones_own() -> None:
    settings = ClusterSettings(round_s=0, restart_s=0)
    answer = paceline.schedule(JOBS, "2x2xT4", "fifo", settings=settings)
    assert [outcome.end_s for outcome in answer.schedule.outcomes] == [100, 150, 200]
    away = paceline.schedule(JOBS, "2x2xT4", "fifo", settings=settings, outages=[Outage(0, 0.0, 500.0)])
    assert away.schedule.outcomes[0].start_s == 500


def test_jobs_larger_than_the_cluster_are_named_with_their_row_or_left_out(tmp_path: Path) -> None:
    trace = tmp_path / "mine.csv"
    trace.write_text("name,arrival_s,devices,duration_s\na,0,4,60\nhuge,0,99,60\nhuger,0,100,60\nb,5,1,60\n")
    with pytest.raises(UserError) as error:
        paceline.schedule(trace, "2x4xT4", "fifo")
    assert str(error.value) == (
        "mine.csv, row 2 (line 3): job 'huge' asks for 99 devices; the cluster has 8 of one type that it may use (1 more of "
        "4 jobs is too large); give a larger cluster, or leave such jobs out with `drop_too_large`"
    )
    simulated = paceline.schedule(trace, "2x4xT4", "fifo", drop_too_large=True)
    assert [outcome.job.name for outcome in simulated.schedule.outcomes] == ["a", "b"]
    assert simulated.notes[0] == "2 of 4 jobs left out: they ask for more devices than the cluster has of one type."


def test_failures_are_drawn_by_the_seed() -> None:
    question: dict[str, Any] = {"failures_s": 86400.0, "repair_s": 3600.0}
    a, b, c = (scenario(JOBS, "2x2xT4", seed=seed, **question) for seed in (1, 1, 2))
    assert a.fleet == b.fleet != c.fleet and a.fleet.outages
    assert f"{len(a.fleet.outages)} failures of nodes drawn" in a.notes[0]


@pytest.mark.parametrize(
    ("jobs", "cluster", "policy", "given", "text"),
    [
        (TRACE, "2x4xT5", "las", {}, "T5"),
        (TRACE, "1x4xT4", "las", {}, "asks for 8 devices; the cluster has 4"),
        (TRACE, "2x4xT4", "lass", {}, "unknown policy 'lass'"),
        (JOBS, "2x4xT4", "las", {"where": {"set": "1"}}, "chooses rows of a file"),
        ([3], "2x4xT4", "las", {}, "3 is not a job"),
        ([job("a", 0, 1, 5)] * 2, "2x4xT4", "las", {}, "two jobs are named 'a'"),
        (TRACE, "2x4xT4", "las", {"profiles": "nowhere"}, "`profiles` nowhere lacks pollux_sia_step_times.csv and poll"),
        (Path("nowhere.csv"), "2x4xT4", "las", {}, "cannot read nowhere.csv"),
    ],
)
def test_mistakes(jobs: Any, cluster: str, policy: str, given: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError) as error:
        paceline.schedule(jobs, cluster, policy, **given)
    assert text in str(error.value)
