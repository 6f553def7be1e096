"""A live run in the form of a simulated one."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from live_jobs import training
from paceline.errors import UserError
from paceline.reporting.schedule_page import render_schedules
from paceline.scheduling.journal import Journal, LiveSpan
from paceline.scheduling.live_schedule import live_schedule
from paceline.scheduling.saved import from_json, to_json


def test_a_journal_is_a_schedule(tmp_path: Path) -> None:
    with Journal(tmp_path / "state") as journal:
        with pytest.raises(UserError, match="has no jobs"):
            live_schedule(journal, {"h0": 2}, "las", 5.0)
        for name, arrival in (("a", 1000.0), ("b", 1010.0)):
            journal.add(training(tmp_path, name), arrival)
        journal.begin_span("a", LiveSpan(1005.0, None, {"h0": 2}))
        journal.begin_span("a", LiveSpan(1020.0, None, {"h0": 1, "h9": 1}, "more room"))
        journal.end_span("a", 1050.0)
        rows = journal.rows()
        journal.save(
            [
                replace(rows["a"], phase="done", since=1050.0, starts=2, is_over=True),
                replace(rows["b"], phase="failed", since=1060.0, reason="died", is_over=True),
            ]
        )
        simulated = live_schedule(journal, {"h0": 2, "h1": 2}, "las", 5.0)
    first, second = simulated.schedule.outcomes
    assert (first.jct_s, first.restarts, first.device_s, first.start_s) == (50.0, 1, 90.0, 5.0)
    assert [span.placement for span in first.spans] == [((0, 2),), ((0, 1), (2, 1))]  # h9, which is gone, is the third
    assert math.isnan(second.end_s) and (second.removed, second.removed_s) == ("died", 60.0)
    assert simulated.schedule.fleet.devices == 6 and simulated.schedule.active == ((0.0, 1), (10.0, 2), (50.0, 1), (60.0, 0))
    saved = from_json(to_json({"las": simulated}))["las"]
    assert saved.schedule.outcomes[0].jct_s == 50.0 and "ran for real" in render_schedules({"las": simulated})
