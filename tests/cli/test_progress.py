"""The line of what is done: on a terminal after a moment, gone at the end; in a pipe a new line now and then."""

from __future__ import annotations

import io
import sys
import time

import pytest

from command import run
from paceline.cli import progress
from planning_commands import PLAN


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watched(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal in the place of stderr, within a test: pytest sets its own stream before each phase."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return stream


def until(stream: Terminal, text: str) -> bool:
    """Whether the text appears within a generous time."""
    end = time.monotonic() + 100
    while text not in stream.getvalue() and time.monotonic() < end:
        time.sleep(0.01)
    return text in stream.getvalue()


def test_a_long_command_says_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    with progress.progress("plan") as say:
        say("before [red]it is shown")
        assert until(terminal, "plan: before [red]it is shown")
        say("17 of 40\nlayouts")
        assert until(terminal, "plan: 17 of 40 layouts")
    assert terminal.getvalue().endswith("\x1b[2K") or "\x1b[2K" in terminal.getvalue()[-40:]


def test_a_short_one_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    monkeypatch.setattr(progress, "PATIENCE_S", 1000.0)  # a busy machine makes it long
    with progress.progress("plan") as say:
        say("something")
    assert terminal.getvalue() == ""


def test_a_pipe_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = iter([100.0, 105.0, 110.0, 119.0, 131.0])
    log = progress._Log("plan", clock=lambda: next(seconds))
    for words in ("a", "b\nof it", "c", "d"):
        log.say(words)
    assert capsys.readouterr().err == "plan: b of it (10 s)\nplan: d (31 s)\n"


def test_a_pipe_gets_none_of_a_short_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    code, _, err = run(capsys, f"{PLAN} --compression dense")
    assert (code, err) == (0, "")


def test_a_command_shows_its_name_and_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    shown: list[bool] = []
    monkeypatch.setattr("paceline.hardware.devices", lambda: shown.append(until(terminal, "paceline hardware list")) or [])
    from paceline.cli import main

    assert main(["hardware", "list"]) == 0 and shown == [True]


def test_words_that_come_while_the_line_is_made_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.progress import Progress

    terminal, line = watched(monkeypatch), progress._Line("plan")
    add_task = Progress.add_task

    def late(self: Progress, description: str, **how: object) -> object:
        task = add_task(self, description, **how)  # type: ignore[arg-type]
        line.say("meanwhile")
        return task

    monkeypatch.setattr(Progress, "add_task", late)
    line.start()
    assert until(terminal, "plan: meanwhile")
    line.stop()
