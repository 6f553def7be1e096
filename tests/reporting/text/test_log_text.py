"""The screen and the page of a log name its skipped rows and its own waits."""

from __future__ import annotations

import re
from dataclasses import replace

from paceline.reporting.pages.schedule_page import render_schedules
from paceline.reporting.text.log_text import left_out_text
from paceline.reporting.text.schedule_text import compare_screen, schedule_screen
from paceline.scheduling.simulate.compare import compare
from paceline.scheduling.simulate.replayed_log import ReplayedLog
from paceline.scheduling.traces.record import SkippedRow
from schedule_toys import simulated

SKIPPED = (
    SkippedRow("q.txt, row 4 (line 5)", "7", "had a wrong time", "submit: 'soon'"),
    SkippedRow("q.txt, row 5", "8", "held no GPU"),
)
LOG = ReplayedLog(file="q.txt", form="sacct", rows=5, skipped=SKIPPED, waits={"a": 30.0, "b": 90.0})


def test_rows_and_waits_are_in_the_plain_answer() -> None:
    one = replace(simulated(), log=LOG)
    text = " ".join(schedule_screen(one, "x").text().split())
    assert "3 of 5 rows of q.txt; left out: 1 had a wrong time, 1 held no GPU; --skipped lists them" in text
    assert "your scheduler mean 60.0 s" in text and "(2 jobs whose wait the log states)" in text and "line 5" not in text
    listed = " ".join(schedule_screen(one, "x", with_skipped=True).text().split())
    assert "- q.txt, row 4 (line 5): 7 had a wrong time (submit: 'soon')" in listed
    assert schedule_screen(one, "x").brief.endswith("; 2 of 5 rows left out") and left_out_text(None) == ""
    assert "every row of q.txt" in schedule_screen(replace(one, log=replace(LOG, rows=3, skipped=())), "x").text()


def test_policies_stand_below_the_scheduler_of_the_log() -> None:
    both = {name: replace(simulated(policy=name), log=LOG) for name in ("fifo", "las")}
    text = compare_screen(both, compare(both), "x").text()
    assert re.search(r"first wait +jobs +mean +median +90% within\nyour scheduler now +2 ", text)
    page = re.sub("<[^>]*>", "", render_schedules(both))
    assert "Your scheduler now" in page and "2 of 5 rows left out" in page
    assert "Your scheduler now" not in render_schedules({"fifo": simulated()})
