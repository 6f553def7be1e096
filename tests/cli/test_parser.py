"""Errors of the parser are one line and name the nearest legal thing."""

from __future__ import annotations

import argparse

import pytest

from paceline.cli.parser import Parser, adder, parse
from paceline.errors import UserError


def test_a_parser_raises_and_never_exits() -> None:
    with pytest.raises(UserError, match="paceline: what; see paceline --help"):
        Parser(prog="paceline").error("what")


def command() -> Parser:
    parser = Parser(prog="paceline")
    add = adder(parser, "command", "COMMAND")
    train = add("train", "Trains.")
    train.runs(lambda o: ({}, ""), "example: paceline train")
    train.add_argument("--epochs", type=int)
    train.add_argument("model")
    return parser


def test_options_are_what_the_command_takes() -> None:
    given = parse(command(), ["train", "lenet5", "--epochs", "3"])
    assert (given.model, given.epochs, given.json) == ("lenet5", 3, False) and given.run(given) == ({}, "")
    assert {"--json", "--epochs", "--help"} <= set(given.parser.options())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "x", "--zzz"], "unknown option '--zzz'; legal: "),
        (["trian", "x"], "unknown command 'trian'.*train"),
        (["train", "x", "--epoch", "3"], "unknown option '--epoch'.*--epochs"),
        (["train", "--epoch=3"], "unknown option '--epoch'.*--epochs"),
        (["train"], "paceline train: .*required: model; see paceline train --help"),
        (["train", "x", "y"], "paceline train: unexpected argument 'y'"),
        (["train", "x", "--epochs", "many"], "paceline train: argument --epochs: 'many' is not a whole number"),
    ],
)
def test_a_mistake_names_what_is_nearest(arguments: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        parse(command(), arguments)
    assert "\n" not in str(caught.value)


def test_a_switch_that_is_on_or_off_or_open_is_typed_as_it_is() -> None:
    parser = Parser(prog="paceline")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--fast", action="store_true")
    for words in ([], ["--compile"], ["--no-compile", "--fast"]):
        assert parser.words(parser.parse_args(words)) == words
