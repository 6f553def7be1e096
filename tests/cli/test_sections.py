"""``--help`` shows the common options of a command with many, ``--help-all`` every option in its section."""

from __future__ import annotations

import argparse
import re
from typing import get_args

import pytest

from command import run
from paceline.cli.command_line import COMMANDS, build_parser
from paceline.cli.guide.sections import FEW, common, is_common, ordered, section
from paceline.cli.parser import Parser
from paceline.names import SECTIONS
from paceline.strategy.choices.choice import Topic
from paceline.strategy.strategy import CHOICES

MOST = 14
"""Most common options of a command."""
VERBS = ("ask", "predict", "memory", "plan", "whatif", "explain", "train")


def commands() -> dict[str, Parser]:
    (verbs,) = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert verbs.choices.keys() == COMMANDS.keys()
    return dict(verbs.choices)


def named(text: str) -> set[str]:
    """Options at the beginnings of the lines of a help."""
    return {
        name for line in text.splitlines() if re.match(r"  -", line) for name in re.findall(r"--[\w-]+", line.split("   ")[0])
    }


def test_each_command_of_many_options_has_a_few_common_ones() -> None:
    for name, parser in commands().items():
        options = {action.option_strings[-1]: action for action in parser._actions if action.option_strings}
        few = {option for option, action in options.items() if is_common(action)}
        assert len(few) <= MOST, name
        if len(options) > FEW:
            assert len(few) >= 5, name
            short = named(parser.format_help())
            assert few <= short and len(short) <= MOST + 5 and "--help-all" not in short, name
            assert f"{parser.prog} --help-all" in parser.format_help()
        assert set(parser.options()) - {"--help"} <= named(parser.full_help()), name


@pytest.mark.parametrize("name", VERBS)
def test_every_option_is_in_a_section(name: str) -> None:
    *sections, rest = (group for group in ordered(commands()[name]) if group.title != "positional arguments")
    titles = [str(group.title) for group in sections]
    assert titles == sorted(titles, key=list(SECTIONS.values()).index)
    assert {option for action in rest._group_actions for option in action.option_strings} == {"-h", "--help", "--help-all"}
    assert max(len(group._group_actions) for group in sections) <= 20


def test_sections_of_choices_are_declared() -> None:
    assert {item.topic for item in CHOICES.values()} <= set(get_args(Topic)) - {""} <= SECTIONS.keys()
    parser = argparse.ArgumentParser()
    option = section(parser, "run").add_argument("--one")
    assert section(parser, "run") is section(parser, "run") and not is_common(option)
    common(option)
    assert is_common(option) and [group.title for group in ordered(parser)] == ["the run", "options"]


def test_help_all_prints_what_help_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    for words, shown in (("--help", False), ("--help-all", True)):
        with pytest.raises(SystemExit) as left:
            run(capsys, f"predict {words}")
        assert left.value.code == 0 and ("--expert-tensor" in named(capsys.readouterr().out)) is shown
