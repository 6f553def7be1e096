"""When live jobs are to end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from live_jobs import script, training
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.live.forecast import forecast, work_left
from paceline.scheduling.live.journal import LiveRow, Report
from paceline.scheduling.live.outlook import ReportedOutlook
from paceline.scheduling.live.policy import reported
from paceline.scheduling.live.runner import Snapshot
from paceline.scheduling.simulate.schedule import ClusterSettings
from paceline.scheduling.state import Outlook

BASE = Path("/data")
NODES = (("h0", 1),)
FLEET = Fleet.named("1x1xT4")
SETTINGS = ClusterSettings(round_s=0.0, restart_s=5.0)


def lasting(name: str, seconds: float, arrival_s: float = 0.0, **more: object) -> LiveRow:
    return LiveRow(launch=script(BASE, "true", name, duration_s=seconds, **more), arrival_s=arrival_s)


def live(now_s: float = 0.0, past: Sequence[LiveRow] = ()) -> Snapshot:
    return Snapshot(now_s=now_s, rows=(), placed={}, nodes=NODES, past=past)


def test_jobs_wait_for_one_another_and_each_pays_its_start() -> None:
    rows = [lasting("a", 60.0), lasting("b", 30.0, 20.0), lasting("c", 10.0, 300.0)]
    expected = forecast(rows, live(), "fifo", FLEET, reported, SETTINGS)
    assert expected is not None and expected.start_s == 0.0
    assert [outcome.end_s for outcome in expected.simulated.schedule.outcomes] == [65.0, 100.0, 315.0]
    assert expected.last_s == (315.0, 315.0, 315.0), "durations that were stated have no range"


def test_it_begins_now_and_what_has_passed_counts() -> None:
    ran = replace(lasting("a", 60.0), run_s=40.0)
    expected = forecast([ran], live(1000.0), "fifo", FLEET, reported, SETTINGS)
    assert expected is not None and expected.start_s == 1000.0
    assert expected.simulated.schedule.outcomes[0].end_s == 25.0
    later = forecast([lasting("a", 60.0, 1100.0)], live(1000.0), "fifo", FLEET, reported, SETTINGS)
    assert later is not None and later.start_s == 1100.0


def test_a_wide_belief_gives_a_range() -> None:
    class Wide(ReportedOutlook):
        def relative_spread(self) -> float:
            return 0.5

    def wide(state: Snapshot, fleet: Fleet) -> Sequence[Outlook]:
        return [Wide(row) for row in state.rows]

    expected = forecast([lasting("a", 60.0)], live(), "fifo", FLEET, wide, SETTINGS)
    assert expected is not None and expected.last_s == (65.0, 45.0, 95.0)


def test_a_job_of_unknown_work_leaves_no_forecast() -> None:
    unknown = LiveRow(launch=script(BASE, "true", "b"), arrival_s=0.0)
    assert forecast([lasting("a", 60.0), unknown], live(), "fifo", FLEET, reported, SETTINGS) is None
    assert forecast([], live(), "fifo", FLEET, reported, SETTINGS) is None


def test_work_is_in_the_units_of_the_goodput() -> None:
    row = LiveRow(
        launch=training(BASE, "a"), arrival_s=0.0, reports=(Report({"h0": 2}, 60.0),), progress={"epoch": 2.0, "step": 20.0}
    )
    assert math.isclose(work_left(ReportedOutlook(row), Fleet.named("1x4xT4")), 4 * 10 * 64)


def test_an_infeasible_deadline_is_refused_in_the_forecast_and_one_that_passed_is_forgotten() -> None:
    rows = [lasting("a", 60.0, deadline_s=10.0), lasting("b", 60.0, deadline_s=1000.0)]
    expected = forecast(rows, live(), "deadline", FLEET, reported, SETTINGS)
    assert expected is not None
    first, second = expected.simulated.schedule.outcomes
    assert first.removed and second.end_s <= 1000.0
    passed = forecast([rows[0]], live(500.0), "deadline", FLEET, reported, SETTINGS)
    assert passed is not None and not passed.simulated.schedule.outcomes[0].removed
