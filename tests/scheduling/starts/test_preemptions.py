"""Preemptions in the futures of a queue, computed by hand."""

from __future__ import annotations

from paceline.reporting.text.screen import text_of
from paceline.reporting.text.start_text import start_screen
from paceline.scheduling.job import Job
from paceline.scheduling.queues.slurm_settings import Qos, SlurmPartition, SlurmSettings
from paceline.scheduling.simulate.schedule import JobOutcome, Span
from paceline.scheduling.starts.preemptions import (
    JobPreemptions,
    PreemptionCounts,
    preemptable_text,
    starts_text,
    stopped_text,
)
from paceline.scheduling.starts.start_answer import StartAnswer
from paceline.scheduling.starts.verb import schedule_start
from paceline.scheduling.starts.waiting_queue import WaitingQueue
from paceline.scheduling.traces.record import JobLog, LoggedJob
from queues import NOW, nodes, runs, waits

SETTINGS = SlurmSettings(multifactor=False, preempt="qos", qos={"high": Qos(preempts=("low",)), "low": Qos(), "mid": Qos()})


def answer(*jobs: LoggedJob, job: str = "") -> StartAnswer:
    log = JobLog(jobs=jobs, form="squeue", file="squeue.txt", moment_s=NOW)
    return schedule_start(WaitingQueue.of(log, nodes(4, 2), settings=SETTINGS), job=job, futures=8)


LOW = runs("low1", 4, 60.0, 3600.0, qos="low", node_names=("n1",))
MID = runs("mid1", 4, 60.0, 7200.0, qos="mid", node_names=("n0",))
HIGH = waits("high1", 4, 600.0, qos="high", nodes=1)


def test_the_answer_names_the_jobs_that_are_stopped_on_the_nodes_that_the_log_names() -> None:
    found = answer(LOW, MID, HIGH)
    (row,) = found.to_json()["jobs"]
    assert (
        row["start_median_s"] == 0 and row["starts_by_preemption"] == 1 and row["preempts"] == [{"name": "low1", "share": 1.0}]
    )
    (stopped,) = found.to_json()["running_jobs_preempted"]
    assert stopped["name"] == "low1" and stopped["preempted_by"] == [{"name": "high1", "share": 1.0}]
    text = text_of(start_screen(found).answer)
    assert "high1 starts by preemption in all futures: it stops low1" in text
    assert "low1 is preempted in all futures: high1 takes its devices" in text
    one = text_of(start_screen(answer(LOW, MID, HIGH, job="high1")).answer)
    assert "It starts by preemption in all futures: it stops low1." in one
    quiet = answer(MID, HIGH)
    assert quiet.to_json()["jobs"][0]["starts_by_preemption"] == 0 and "Preemption" not in text_of(start_screen(quiet).answer)


def test_a_waiting_job_that_may_be_preempted_is_told_so() -> None:
    late = waits("low2", 4, 3600.0, qos="low", nodes=1)
    assert "Jobs of QOS high may preempt it." in answer(MID, late, job="low2").reasons["low2"]
    tiers = SlurmSettings(preempt="partition_prio", partitions={"a": SlurmPartition(), "b": SlurmPartition(tier=2)})
    assert preemptable_text(waits("j", 1, queue="a"), tiers) == "Jobs of partition b may preempt it."
    assert not preemptable_text(waits("j", 1, queue="b"), tiers) and not preemptable_text(waits("j", 1), SlurmSettings())


def outcome(name: str, start_s: float, *preempted: tuple[float, str]) -> JobOutcome:
    spans = [Span(start_s, start_s + 9, "T4", ((0, 1),))]
    return JobOutcome(Job(name=name, duration_s=9), 99.0, spans=spans, preempted=list(preempted))


def test_shares_of_the_futures() -> None:
    """Job 2 stops job 0 in two of four futures, and job 1 in one. A later job stops job 0 in another future."""
    counts = PreemptionCounts()
    counts.add({"0": outcome("0", 0, (5.0, "2")), "1": outcome("1", 0, (5.0, "2")), "2": outcome("2", 5)})
    counts.add({"0": outcome("0", 0, (7.0, "2")), "1": outcome("1", 0), "2": outcome("2", 8)})
    counts.add({"0": outcome("0", 0, (7.0, "3")), "2": outcome("2", 8), "3": outcome("3", 7)})
    counts.add({"0": outcome("0", 0, (30.0, "2")), "2": outcome("2", 8)})  # after its first start: it is no way to start
    found = counts.of([waits(name, 1) for name in ("a", "b", "c", "d")], 3)
    assert found["c"] == JobPreemptions(0.5, (("a", 0.5), ("b", 0.25)))
    assert found["a"].stopped == 1 and found["a"].stoppers == (("c", 0.75), ("a job to come", 0.25))
    assert starts_text(found["c"]) == "starts by preemption in 50 % of the futures: it stops a or b (25 %)"
    assert stopped_text(found["b"]) == "is preempted in 25 % of the futures: c takes its devices"
