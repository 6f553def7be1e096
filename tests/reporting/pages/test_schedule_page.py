"""The page of schedules has every part, escapes names, and is the same for the same schedules."""

from __future__ import annotations

import math
import re

from paceline.reporting.pages.schedule_page import render_schedules
from schedule_toys import job, simulated


def test_every_part_is_there_and_the_page_repeats() -> None:
    both = {"fifo": simulated(), "las": simulated(policy="las")}
    page = render_schedules(both)
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    best = "fifo" if both["fifo"].metrics.mean_jct_s <= both["las"].metrics.mean_jct_s else "las"
    assert titles == [
        "Policies compared",
        "Figures",
        "Completion times",
        f"Nodes over time under {best}",
        f"Devices held by type under {best}",
        f"Queue under {best}",
        "Why they waited",
        "It rests on",
    ]
    assert page == render_schedules(both) and "Intervals hold 95 %." in page


def test_one_policy_and_names_that_are_html() -> None:
    page = render_schedules({"fifo": simulated(job("<b>x</b>", 0, 4, 9), job("y", 1, 4, 9))})
    assert "<b>x" not in page and "&lt;b&gt;x" in page and "Policies compared" not in page


def test_removed_jobs_and_too_few_are_said() -> None:
    other = simulated(policy="las")
    other.schedule.outcomes[2].end_s, other.schedule.outcomes[2].removed = math.nan, "its deadline cannot be met"
    page = re.sub("<[^>]*>", "", render_schedules({"fifo": simulated(), "las": other}))
    for words in ("settles nothing: too few jobs", "jobs did not end; the policy removed 1.", "ended under both, 2 of 3;"):
        assert words in page
