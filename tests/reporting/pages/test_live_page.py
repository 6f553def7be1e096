"""The page of a live schedule."""

from __future__ import annotations

from pathlib import Path

from live_journal import written
from paceline.reporting.pages.answer_page import Page
from paceline.reporting.pages.live_page import live_page, live_status
from paceline.scheduling.live.journal import NAME, Journal
from paceline.scheduling.live.view import live_view

NOW_S = 1e6


def page(base: Path, after_s: float = 0.0, is_over: bool = False) -> Page:
    return live_page(live_view(written(base, NOW_S, is_over), NOW_S + after_s))


def test_a_row_a_job_with_what_was_predicted_and_achieved(tmp_path: Path) -> None:
    drawn = page(tmp_path)
    table = drawn.sections[0]
    rows = {row[0]: dict(zip(table.heads, row, strict=True)) for row in table.rows}
    assert rows["digits"] == {
        **{"job": "digits", "state": "done", "devices": "none", "waited": "10.0 s"},
        **{"predicted at first": "6.3 min", "predicted now": "", "achieved": "6.7 min", "why": ""},
    }
    assert (rows["grows"]["devices"], rows["grows"]["predicted now"]) == ("h1:2 h2:2", "20 min")
    assert rows["theirs"]["predicted now"] == "unknown" and rows["flat"]["achieved"] == "never"
    assert {card["name"]: card["value"] for card in drawn.cards} == {
        "running": "2",
        "waiting": "1",
        "done": "1",
        "failed or removed": "2",
    }
    assert drawn.subtitle == "on slurm: 4 nodes up, 8 devices; the last decision 4.00 s ago, one every 10.0 s"


def test_the_pictures_are_those_of_a_report_up_to_now(tmp_path: Path) -> None:
    titles = {section.title: section for section in page(tmp_path).sections}
    assert list(titles) == ["Jobs", "Nodes over time", "Queue", "What happened last"]
    gantt, queue = (titles[title].pictures[0] for title in ("Nodes over time", "Queue"))
    assert ">h3</text>" in gantt and "theirs: 2 device from" in gantt and "minutes after the first arrival" in gantt
    assert "minutes after the first arrival" in queue


def test_a_runner_that_does_not_decide_is_missed(tmp_path: Path) -> None:
    assert page(tmp_path).findings == []
    assert "does not seem to run" in page(tmp_path, 60.0).findings[0]
    assert page(tmp_path, 60.0, is_over=True).findings == ["Every job is over."]


def test_the_line_for_ears_changes_with_a_state_alone(tmp_path: Path) -> None:
    lines = [live_status(live_view(written(tmp_path, NOW_S), NOW_S + after_s)) for after_s in (0.0, 10.0)]
    assert lines == ["1 done, 2 running, 1 failed, 1 removed, 1 waits, 1 to come"] * 2


def test_an_empty_journal_is_a_page(tmp_path: Path) -> None:
    with Journal(tmp_path / NAME):
        view = live_view(tmp_path / NAME, NOW_S)
    assert live_page(view).title == "0 jobs under unknown policy" and live_status(view) == "no jobs"
