"""What a runner knows outlives it, and has one writer."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from live_jobs import training
from paceline.errors import UserError
from paceline.scheduling.live.journal import Journal, LiveSpan, Report

WRITER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from live_jobs import training
from paceline.scheduling.live.journal import Journal
base = Path(sys.argv[1])
journal = Journal(base / "state")
for number in range(1000):
    journal.add(training(base, f"job{number}"), float(number))
    print(number, flush=True)
"""


def test_what_is_written_is_read_by_the_next(tmp_path: Path) -> None:
    with Journal(tmp_path / "state") as journal:
        journal.add(training(tmp_path, "late"), 9.0)
        journal.add(training(tmp_path, "early"), 5.0)
        reports = Report({"h0": 1}, 6.0), Report({"h0": 2}, 10.5, 0.25)
        row = replace(journal.rows()["early"], target={"h0": 2}, starts=1, reports=reports, phase="running")
        journal.save([row], [("early", "to run on h0:2")])
        journal.add(training(tmp_path, "early"), 99.0)  # as a runner does that is started again
    with Journal(tmp_path / "state") as journal:
        assert list(journal.rows()) == ["early", "late"] and journal.rows()["early"] == row
        assert [(name, what) for _, name, what in journal.events("early")] == [("early", "to run on h0:2")]
        assert journal.events("late") == []
        with pytest.raises(UserError, match=r"already has another job named late"):
            journal.add(training(tmp_path, "late", epochs=99), 9.0)


def test_spans_follow_one_another(tmp_path: Path) -> None:
    with Journal(tmp_path / "state") as journal:
        for start, placement in ((1.0, {"h0": 1}), (2.0, {"h0": 1}), (3.0, {"h0": 2})):
            journal.begin_span("job", LiveSpan(start, None, placement))
        journal.end_span("job", 7.0)
        journal.end_span("job", 9.0)
        assert journal.spans("job") == [LiveSpan(1.0, 3.0, {"h0": 1}), LiveSpan(3.0, 7.0, {"h0": 2})]


def test_the_second_runner_is_refused_and_the_first_is_named(tmp_path: Path) -> None:
    with Journal(tmp_path / "state"), pytest.raises(UserError, match=f"state is in use by process {os.getpid()} on "):
        Journal(tmp_path / "state")
    Journal(tmp_path / "state").close()


def test_a_killed_writer_leaves_whole_rows_and_no_lock(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    words = [sys.executable, "-c", WRITER, str(tmp_path), str(Path(__file__).parents[2])]
    writer = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    assert writer.stdout is not None
    while int(writer.stdout.readline()) < 10:
        pass
    with pytest.raises(UserError, match=f"in use by process {writer.pid} "):
        Journal(tmp_path / "state")
    writer.send_signal(signal.SIGKILL)
    said = writer.stdout.read().split()  # communicate() would lose what readline() has read ahead
    writer.stdout.close()
    writer.wait(timeout=100)
    with Journal(tmp_path / "state") as journal:
        rows = journal.rows()
    assert len(rows) in (len(said) + 11, len(said) + 12) and list(rows) == [f"job{n}" for n in range(len(rows))]


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("not a database, and longer than a header of one would be " * 20)
    with pytest.raises(UserError, match="cannot be used: file is not a database"):
        Journal(tmp_path / "state")
    with sqlite3.connect(tmp_path / "other") as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(UserError, match="has schema 99, this version reads 2"):
        Journal(tmp_path / "other")
    with pytest.raises(UserError, match="cannot be used"):
        Journal("/dev/null/state")
