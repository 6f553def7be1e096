"""What a live schedule is doing now, read from its journal while it may be written."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from live_journal import written
from paceline.errors import UserError
from paceline.scheduling.live.journal import NAME, Journal
from paceline.scheduling.live.view import JobNow, journal_path, live_view

NOW_S = 1e6


def jobs(base: Path, now_s: float = NOW_S) -> dict[str, JobNow]:
    return {job.name: job for job in live_view(written(base, NOW_S), now_s).jobs}


def test_each_job_has_its_state_and_its_devices(tmp_path: Path) -> None:
    now = jobs(tmp_path)
    states = {name: (job.state, job.nodes) for name, job in now.items()}
    assert states == {
        "digits": ("done", ""),
        "grows": ("running", "h1:2 h2:2"),
        "theirs": ("running", "h3:2"),
        "broken": ("failed", ""),
        "flat": ("removed", ""),
        "waits": ("waits", ""),
        "later": ("to come", ""),
    }
    waited = {name: job.waited_s for name, job in now.items()}
    assert waited == {"digits": 10, "grows": 30, "theirs": 10, "broken": 10, "flat": 290, "waits": 400, "later": 0}


def test_completion_is_predicted_and_achieved(tmp_path: Path) -> None:
    now = jobs(tmp_path)
    assert (now["digits"].first_s, now["digits"].achieved_s) == (380, 400) and math.isnan(now["digits"].now_s)
    left_s = (10 - 4) * (80 / 4) * 64 / 20.0  # epochs, steps of each, samples of each, samples a second
    assert now["grows"].now_s == 880 - 60 + left_s and math.isnan(now["grows"].achieved_s)
    assert jobs(tmp_path, NOW_S + 1e4)["grows"].now_s == 900 - 60 + 1e4, "not before now"
    assert all(math.isnan(time_s) for time_s in (now["theirs"].first_s, now["theirs"].now_s))


def test_it_says_why(tmp_path: Path) -> None:
    now = jobs(tmp_path)
    assert (
        now["waits"].why == "2 devices are free, and it needs at least 1; grows, theirs hold the rest. las gives it none now."
    )
    assert (now["grows"].why, now["theirs"].why) == ("More room.", "")
    assert (now["broken"].why, now["flat"].why) == ("it ended with code 1", "removed: it learns no more")
    assert now["later"].why == "It arrives in 300 s."


def test_the_schedule_lasts_until_now(tmp_path: Path) -> None:
    view = live_view(written(tmp_path, NOW_S), NOW_S + 40)
    assert view.schedule is not None and view.names == ("h0", "h1", "h2", "h3") and (view.held, view.end_s) == (6, 940)
    outcomes = {outcome.job.name: outcome for outcome in view.schedule.schedule.outcomes}
    assert "later" not in outcomes and outcomes["theirs"].spans[-1].end_s == 940
    assert (view.policy, view.executor, view.decided_s, view.is_over, view.is_late) == ("las", "slurm", 44, False, False)
    assert live_view(tmp_path / NAME, NOW_S + 60).is_late
    assert [what for _, _, what in view.events] == ["to wait", "to run on h1:2 h2:2: more room"]


def test_a_schedule_that_is_over_is_never_late(tmp_path: Path) -> None:
    view = live_view(written(tmp_path, NOW_S, is_over=True), NOW_S + 1e5)
    assert view.is_over and not view.is_late and view.held == 0


def test_it_is_read_while_a_runner_has_it_and_nothing_is_written(tmp_path: Path) -> None:
    path = written(tmp_path, NOW_S)
    with Journal(path) as journal:
        before = path.stat().st_mtime_ns, path.stat().st_size
        assert len(live_view(path, NOW_S).jobs) == 7
        assert (path.stat().st_mtime_ns, path.stat().st_size) == before
        journal.remember(policy="fifo")  # nobody holds the runner up
        assert live_view(path, NOW_S).policy == "fifo"


def test_a_journal_in_which_nothing_has_happened_has_no_picture(tmp_path: Path) -> None:
    with Journal(tmp_path / NAME):
        view = live_view(tmp_path / NAME, NOW_S)
    assert view.schedule is None and view.jobs == () and math.isnan(view.decided_s)


def test_a_place_without_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no live schedule"):
        journal_path(tmp_path)
    with pytest.raises(UserError, match="there is no journal"):
        live_view(tmp_path / NAME, NOW_S)
    (tmp_path / NAME).write_bytes(os.urandom(500))
    with pytest.raises(UserError, match="holds no live schedule"):
        journal_path(tmp_path)
    with pytest.raises(UserError, match="cannot be used: file is not a database"):
        live_view(tmp_path / NAME, NOW_S)


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("name,arrival_s\n")
    with pytest.raises(UserError, match=r"jobs\.csv holds no live schedule"):
        journal_path(tmp_path / "jobs.csv")
