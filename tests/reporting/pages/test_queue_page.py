"""Page of a live queue."""

from __future__ import annotations

from paceline.reporting.pages.queue_page import queue_page, queue_status
from paceline.scheduling.starts.verb import schedule_start
from queues import queue, runs, waits


def test_the_page_lists_waiting_and_held_jobs() -> None:
    there = queue(runs("r", 8, 10.0, 3600.0), waits("w", 8, 3600.0), waits("h", 1, reason="JobHeldUser"))
    answer = schedule_start(there, futures=8)
    page = queue_page(answer)
    assert [section.title for section in page.sections] == ["Waiting jobs", "Not up to the scheduler"]
    assert page.sections[0].rows[0][0] == "w" and queue_status(answer) == "1 waiting, 1 running"
