"""``paceline help`` in the terminal and as JSON."""

from __future__ import annotations

import pytest

from command import answer, run
from paceline.cli.command_line import build_parser


def test_help_on_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "help zero3")
    assert (code, err) == (0, "") and "write    --sharding zero3" in out
    (topic,) = answer(capsys, "help zero3")["topics"]
    assert (topic["kind"], topic["name"]) == ("value", "zero3")
    assert (
        run(capsys, "help schedule compare")[1]
        == build_parser("schedule")
        .parse_args(["schedule", "compare", "x", "--cluster", "1xT4", "--policies", "las"])
        .parser.format_help()
        .strip()
        + "\n"
    )


def test_help_without_a_topic_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "help")
    assert code == 0 and "exit-codes" in out and "whatif" in out and "commands" in answer(capsys, "help")
    code, out, err = run(capsys, "help nonsens")
    assert (code, out) == (2, "") and err.count("\n") == 1
