"""Screen of ``paceline schedule start``."""

from __future__ import annotations

from paceline.reporting.text.screen import text_of
from paceline.reporting.text.start_text import MOST, start_screen
from paceline.scheduling.starts.verb import schedule_start
from queues import queue, runs, waits


def test_a_long_queue_is_cut_and_held_jobs_are_named() -> None:
    many = [waits(f"w{at}", 8, 3600.0, 99.0 - at, user="ann") for at in range(MOST + 3)]
    there = queue(runs("r", 8, 10.0, 3600.0), *many, waits("h", 1, reason="JobHeldUser"))
    screen = start_screen(schedule_start(there, futures=8))
    text = text_of(screen.answer)
    assert "3 more jobs" in text and "h: JobHeldUser: its owner holds it" in text and "w0 starts in" in screen.brief
