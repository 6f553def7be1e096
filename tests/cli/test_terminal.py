"""What reaches the terminal: its width, colour only where it is wanted, one line for ``--brief``."""

from __future__ import annotations

import io
import sys

import pytest

from command import answer, run
from paceline.cli import main, terminal
from planning_commands import JOB, PLAN

COMMANDS = (
    f"predict {JOB}",
    f"{PLAN} --compression dense",
    f"whatif {JOB} --change nodes+2 --change network=100Gb/s",
    f"explain {JOB}",
    "predict lenet5 --device V100 --nodes 4 --network 10Gb/s --global-batch 256 --asynchronous",
    "hardware list",
    "hardware show H100",
    "hardware show NVLink3",
    "workload list",
    "workload show lenet5",
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.everyday(
    "predict resnet-50 --device V100 --devices-per-node 8 --nodes 2 --network 10Gb/s --global-batch 1024",
    "predict lenet5 --device V100 --nodes 4 --network 10Gb/s --global-batch 256 --asynchronous",
)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_fits_every_width_and_has_one_line(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[terminal.Screen] = []
    monkeypatch.setattr(terminal, "show", lambda screen, **options: shown.append(screen))
    assert run(capsys, command)[0] == 0
    (screen,) = shown
    for width in (40, 41, 57, 80, 123, 200):
        for why in (False, True):
            lines = screen.text(width, why).splitlines()
            assert max(map(len, lines)) <= width, (width, why)
            assert "  compute " not in screen.text() or max(map(len, lines)) > width - 4, "bars fill it"
    assert screen.brief and "\n" not in screen.brief_line() and screen.why and screen.why_holds


@pytest.mark.everyday(
    "predict resnet-50 --device V100 --devices-per-node 8 --nodes 2 --network 10Gb/s --global-batch 1024",
    "command1",
    "explain resnet-50 --device V100 --devices-per-node 8 --nodes 2 --network 10Gb/s --global-batch 1024",
)
@pytest.mark.parametrize("command", COMMANDS[:5])
def test_why_has_every_assumption(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, command)
    wanted = data["assumptions"] if "assumptions" in data else data["base"]["assumptions"]
    flat = "".join(run(capsys, f"{command} --why")[1].split())
    assert wanted and all("".join(text.split()) in flat for text in wanted)


def test_brief_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, f"predict {JOB} --brief")
    assert (code, err, out.count("\n")) == (0, "", 1) and "a step (" in out and "GiB a device, waits for " in out
    for pair in ("--brief --why", "--brief --json", "--why --json"):
        assert run(capsys, f"predict {JOB} {pair}")[0] == 2


def shown_on(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, **variables: str) -> str:
    for name in ("NO_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["hardware", "show", "H100"]) == 0
    return stream.getvalue()


def test_colour_on_a_terminal_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = shown_on(io.StringIO(), monkeypatch)
    assert "\x1b" not in plain
    coloured = shown_on(Terminal(), monkeypatch)
    assert "\x1b[1m" in coloured
    for quiet in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert shown_on(Terminal(), monkeypatch, **quiet) == plain
    assert "\x1b" in shown_on(Terminal(), monkeypatch, NO_COLOR="")  # no-color.org: empty is not set


@pytest.mark.parametrize(("columns", "width"), [("10", 40), ("64", 64), ("999", 200), ("", 80)])
def test_the_width_is_that_of_the_terminal_within_limits(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown_on(io.StringIO(), monkeypatch, COLUMNS=columns).splitlines()
    assert terminal.width() == width and max(map(len, lines)) <= width
