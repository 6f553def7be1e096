"""``paceline help`` knows every command, option, value and term."""

from __future__ import annotations

import pytest

from paceline.cli.command_line import COMMANDS, build_parser
from paceline.cli.guide.glossary import subjects, terms
from paceline.cli.guide.topics import EXIT_CODES, commands, find, listed, topics
from paceline.errors import UserError
from paceline.strategy.strategy import CHOICES

PARSER = build_parser()


def test_everything_that_a_user_types_has_help() -> None:
    names = {topic.name for topic in topics(PARSER)}
    every = dict(commands(PARSER))
    assert set(COMMANDS) < set(every) <= names
    assert {option.removeprefix("--") for command in every.values() for option in command.options()} <= names
    values = {str(value) for item in CHOICES.values() for value in item.values.names if not str(value).isdecimal()}
    assert values <= names and terms().keys() <= names and {*subjects(), EXIT_CODES} <= names
    assert all(topic.text for topic in topics(PARSER))


@pytest.mark.parametrize(
    ("words", "kinds", "said"),
    [
        ("precision", ["option", "option", "option", "term"], "bf16"),
        ("--micro-batches", ["option", "option"], "--grad-accum"),
        ("full_shard", ["value"], "--sharding zero3"),
        ("Tensor Parallelism", ["term"], "divide each layer"),
        ("exit codes", ["subject"], "does not fit"),
        ("machines", ["subject"], "4x8 H100, 400Gb/s RoCE"),
        ("prices", ["subject"], "PACELINE_PRICES"),
        ("schedule compare", ["command"], "--policies"),
        ("megatron", ["value"], "--framework megatron"),
        ("tensor_model_parallel_size", ["option", "option"], "--tensor"),
    ],
)
def test_a_topic_is_found_as_people_type_it(words: str, kinds: list[str], said: str) -> None:
    found = find(words, PARSER)
    assert [topic.kind for topic in found] == kinds
    assert said in " ".join([found[0].text, *(text for topic in found for _, text in topic.facts)])


@pytest.mark.parametrize(("words", "near"), [("prescision", "precision"), ("zero33", "zero3"), ("exit-code", EXIT_CODES)])
def test_a_wrong_topic_names_the_nearest(words: str, near: str) -> None:
    with pytest.raises(UserError) as error:
        find(words, PARSER)
    assert near in error.value.message and "paceline help lists the topics" in error.value.fix


def test_the_list_names_every_command() -> None:
    kinds = dict(listed(COMMANDS))
    assert kinds["commands"].split(", ") == list(COMMANDS) and "exit-codes" in kinds["subjects"]
