"""Screen of ``paceline schedule start``."""

from __future__ import annotations

from paceline.reporting.text.screen import text_of
from paceline.reporting.text.start_text import MOST, start_screen
from paceline.scheduling.queues.slurm_settings import SlurmSettings
from paceline.scheduling.starts.verb import schedule_start
from paceline.scheduling.starts.waiting_queue import WaitingQueue
from paceline.scheduling.traces.record import JobLog
from queues import NOW, nodes, queue, runs, waits


def test_a_long_queue_is_cut_and_held_jobs_are_named() -> None:
    many = [waits(f"w{at}", 8, 3600.0, 99.0 - at, user="ann") for at in range(MOST + 3)]
    there = queue(runs("r", 8, 10.0, 3600.0), *many, waits("h", 1, reason="JobHeldUser"))
    screen = start_screen(schedule_start(there, futures=8))
    text = text_of(screen.answer)
    assert "3 more jobs" in text and "h: JobHeldUser: its owner holds it" in text and "w0 starts in" in screen.brief


def test_held_jobs_are_grouped_by_their_reason_and_why_says_what_was_done() -> None:
    held = [waits(f"d{at}", 1, reason="Dependency") for at in range(7)] + [waits("u", 1, reason="JobHeldUser")]
    jobs = (runs("r", 8, 10.0, 3600.0), waits("w", 8, 600.0), *held)
    text = text_of(start_screen(schedule_start(queue(*jobs), futures=8)).answer)
    assert "d0, d1, d2 and 4 more: Dependency: it waits for another job" in text and "u: JobHeldUser" in text

    def why(settings: SlurmSettings | None) -> str:
        log = JobLog(jobs=jobs, form="squeue", file="squeue.txt", moment_s=NOW)
        there = WaitingQueue.of(log, nodes(8), settings=settings)
        return " ".join(text_of(start_screen(schedule_start(there, futures=8)).why).split())

    plain, ruled, printed = why(None), why(SlurmSettings()), why(SlurmSettings(multifactor=False))
    assert "by printed priority, then submission" in plain and "fair share and preemption are not simulated" in plain
    assert "Priorities are computed from their factors" in ruled and "printed" not in ruled
    assert "by printed priority" in printed and not any(
        "is stretched" in each or "Ray" in each for each in (plain, ruled, printed)
    )


def test_a_job_of_squeue_without_devices_says_where_they_may_be() -> None:
    screen = start_screen(schedule_start(queue(waits("a", 1, 60.0), waits("b", 0, 60.0)), futures=8))
    assert "b names no device that it asks for (--gpus is not in TRES_PER_NODE: print squeue --json)" in " ".join(
        text_of(screen.answer).split()
    )
