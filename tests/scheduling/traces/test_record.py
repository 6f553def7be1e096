"""Records of a log: waits, arrays, and runs of one job."""

from __future__ import annotations

import math

from paceline.scheduling.traces.record import JobLog, LoggedJob, SkippedRow, expanded, numbered, singular


def test_a_job_waits_from_its_eligibility() -> None:
    held = LoggedJob(name="a", state="ended", submit_s=10, eligible_s=50, start_s=70)
    assert (held.arrival_s, held.wait_s) == (50, 20)
    plain = LoggedJob(name="a", state="ended", submit_s=10, start_s=70)
    assert (plain.arrival_s, plain.wait_s) == (10, 60)
    assert math.isnan(LoggedJob(name="a", state="waiting", submit_s=10).wait_s)


def test_arrays_and_runs_get_names_of_their_own() -> None:
    array = LoggedJob(name="7_[1,3]", array="7", tasks=(1, 3), state="waiting")
    assert [(job.name, job.tasks) for job in expanded([array])] == [("7_1", ()), ("7_3", ())]
    again = [LoggedJob(name=name, state="ended") for name in "aba"]
    assert [job.name for job in numbered(again)] == ["a", "b", "a, run 2"]


def test_rows_become_jobs_or_are_skipped() -> None:
    bad, job = SkippedRow("f, row 1", "x", "held no GPU"), LoggedJob(name="a", state="running")
    log = JobLog.of([bad, job], [bad], form="f")
    assert (log.jobs, log.skipped, log.form, log.in_state("running")) == ((job,), (bad, bad), "f", (job,))


def test_a_reason_is_said_of_one_job() -> None:
    assert singular("name no device that they ask for") == "names no device that it asks for"
