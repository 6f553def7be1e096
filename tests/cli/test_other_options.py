"""Options of another command are answered with what to write instead."""

from __future__ import annotations

import pytest

from command import run
from paceline.cli.arguments.other_options import _OF, instead_of
from paceline.cli.command_line import build_parser


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("ask resnet-50 --why-not sharding=zero3", "paceline plan takes it"),
        ("ask resnet-50 --nodes 2", "write --on '2x8 A100, 100Gb/s'"),
        ("plan resnet-50 --cluster '4 A100' --by 2h", "write --goal deadline=6h"),
        ("predict resnet-50 --device A100 --tokens 1B", "paceline ask and paceline plan are about a training"),
    ],
)
def test_an_option_of_another_command_says_what_to_write(command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, command)
    assert (code, out) == (2, "") and words in err and "nearest" not in err and err.count("\n") == 1


@pytest.mark.parametrize("command", sorted(_OF))
def test_what_is_to_be_written_exists(command: str) -> None:
    """No command takes what it has something else for, and has the options that it names."""
    parser = build_parser(command)._subparsers._group_actions[0].choices[command]  # type: ignore[union-attr, index, call-overload]
    own = set(parser.options())
    assert not own & _OF[command].keys()
    for text in _OF[command].values():
        named = [word for word in text.replace(",", "").split() if word.startswith("--")]
        assert "paceline plan" in text or all(word in own for word in named), text
    assert instead_of("--nothing", command) == instead_of("--by", "train") == ""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("predict lenet5 --chunk 4096", "unknown option '--chunk'; write --option chunk=VALUE;"),
        ("predict lenet5 --compression-option chunk=1", "write --option NAME=VALUE"),
        ("train --model lenet5 --data digits --precision bf17", "legal: fp32, tf32, bf16, fp16\n"),
    ],
)
def test_options_of_a_compression_and_precisions_are_those_that_run(
    command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, command)
    assert (code, out) == (2, "") and words in err
