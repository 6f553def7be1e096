"""A live run in the form of a simulated one."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from live_jobs import training
from live_journal import written
from paceline.errors import UserError
from paceline.reporting.pages.schedule_page import render_schedules
from paceline.scheduling.live.finished import live_schedule, newer_journal, schedule_so_far
from paceline.scheduling.live.journal import NAME, Journal, LiveSpan
from paceline.scheduling.simulate.saved import from_json, to_json
from paceline.scheduling.simulate.wait_reasons import JobHistory, why


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
    assert saved.schedule.fleet.names == ("h0", "h1", "h9") and why(saved, "a").stretches[1].nodes == "h0 x2"
    assert saved.schedule.outcomes[0].jct_s == 50.0 and "ran for real" in render_schedules({"las": simulated})


def test_the_reason_of_a_stretch_is_what_was_said_last_of_its_placement(tmp_path: Path) -> None:
    with Journal(tmp_path / NAME) as journal:
        journal.add(training(tmp_path, "a"), 1000.0)
        for what in ("to run on h1:1 h0:1: first: it came first", "to wait: others are shorter", "to run on h0:2"):
            journal.save([], [("a", what)])
        later_s = journal.events()[-1][0] + 100.0
        journal.begin_span("a", LiveSpan(1005.0, None, {"h0": 1, "h1": 1}))
        journal.end_span("a", later_s)
        journal.begin_span("a", LiveSpan(later_s, None, {"h0": 2}))
        journal.end_span("a", later_s + 1)
        journal.begin_span("a", LiveSpan(later_s + 2, None, {"h0": 1, "h1": 1}))
        journal.begin_span("a", LiveSpan(later_s + 3, None, {"h1": 2}, "noted"))
        (outcome,) = live_schedule(journal, {"h0": 2, "h1": 2}, "las", 5.0).schedule.outcomes
        early = replace(journal.spans("a")[0], end_s=1010.0)
        journal.spans = lambda name: [early]  # type: ignore[method-assign]
        (before,) = live_schedule(journal, {"h0": 2, "h1": 2}, "las", 5.0).schedule.outcomes
    assert [span.reason for span in outcome.spans] == ["first: it came first", "", "first: it came first", "noted"]
    assert [span.reason for span in before.spans] == [""], "what is said later is no reason of what is over"


def test_a_schedule_that_goes_on_is_told_up_to_now(tmp_path: Path) -> None:
    schedule = schedule_so_far(written(tmp_path, 1e6), 1e6 + 50)

    def told(name: str) -> JobHistory:
        return why(schedule, name)

    grows = told("grows")
    assert grows.goes_on and [(stretch.end_s, stretch.nodes) for stretch in grows.stretches[-1:]] == [(950.0, "h1 x2, h2 x2")]
    assert grows.stretches[-1].why[0] == "More room."
    assert [(stretch.start_s, stretch.end_s) for stretch in told("waits").stretches] == [(500.0, 950.0)]
    assert told("waits").stretches[0].why == (
        "Free were 4 of 8 device; 2 jobs held devices.",
        "1 job waited too, since before it came.",
        "It still waits.",
    )
    assert told("later").stretches == () and told("later").goes_on
    assert not told("digits").goes_on and not told("broken").goes_on
    assert told("flat").stretches[-2].nodes == "h0 x2"
    assert any("left it waiting at 29 decisions" in text for text in told("flat").stretches[0].why)


def test_a_journal_without_a_round_is_no_schedule_yet(tmp_path: Path) -> None:
    with Journal(tmp_path / NAME) as journal:
        journal.add(training(tmp_path), 5.0)
        with pytest.raises(UserError, match="no round was made yet"):
            schedule_so_far(tmp_path / NAME, 10.0)


def test_the_journal_counts_where_it_is_newer(tmp_path: Path) -> None:
    saved = tmp_path / "schedule.json"
    assert newer_journal(tmp_path, saved) is None
    with Journal(tmp_path / NAME) as journal:
        assert newer_journal(tmp_path, saved) == tmp_path / NAME
        saved.touch()
        os.utime(saved, (2e9, 2e9))
        assert newer_journal(tmp_path, saved) is None
        os.utime(tmp_path / NAME, (1e9, 1e9))
        os.utime(saved, (1.1e9, 1.1e9))
        journal.remember(policy="las")  # into the log of what is to come
        assert (tmp_path / NAME).stat().st_mtime < saved.stat().st_mtime
        assert newer_journal(tmp_path, saved) == tmp_path / NAME
