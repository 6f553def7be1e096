"""Argument parser with one-line errors, for commands and groups of actions."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from paceline.cli.arguments.other_options import instead_of
from paceline.errors import UserError, unknown
from paceline.names import near_names

if TYPE_CHECKING:
    from paceline.reporting.text.screen import Screen

Answer = tuple[dict[str, Any] | list[dict[str, Any]], "Screen"]
"""A command's answer, as JSON (a list: one object a line) and for the terminal."""
Handler = Callable[[argparse.Namespace], Answer]
_FEW = 6  # an error lists all options of a command with at most this many
BRIEF = ("brief",)
"""Form of an answer without sources, and so without ``--why``."""
PREDICT_EXAMPLE = """example:
  paceline predict resnet-50 --device A100 --devices-per-node 8 --nodes 4 --network 100Gb/s --global-batch 2048"""
"""Example of ``paceline predict``, and of the whole command line."""


class UsageError(UserError):
    """Error for arguments that argparse refused; ``parser`` is the command's."""

    def __init__(self, message: str, parser: Parser) -> None:
        self.parser = parser
        super().__init__(f"{parser.prog}: {message}", f"see {parser.prog} --help")


class Parser(argparse.ArgumentParser):
    """Argument parser whose one-line errors name the nearest legal value. Options may not be abbreviated."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False, **given})
        self.set_defaults(parser=self)
        self._usual = ""

    def error(self, message: str) -> NoReturn:
        """Raise UserError instead of printing the usage and exiting."""
        wrong = re.search(r"invalid choice: '([^']*)'.*\(choose from (.*)\)", message)
        if wrong:
            raise unknown("command", wrong[1], [name.strip("' ") for name in wrong[2].split(",")], f"{self.prog} --help")
        if number := re.fullmatch(r"(argument .*): invalid (int|float) value: (.*)", message):
            message = f"{number[1]}: {number[3]} is not a {'whole ' if number[2] == 'int' else ''}number"
        raise UsageError(message, self)

    def options(self) -> list[str]:
        """Return every option that this command takes."""
        return [name for action in self._actions for name in action.option_strings if name.startswith("--")]

    def words(self, options: argparse.Namespace, only: Collection[str] = ()) -> list[str]:
        """Return the words that a user types for these options, without ``--json``.

        Args:
            only: names of options; by default the operands and all options with other values than their defaults.
        """
        words: list[str] = []
        for action in self._actions:
            value = getattr(options, action.dest, None)
            if action.dest in ("json", "help") or action.dest not in (only or vars(options)):
                continue
            if not action.option_strings:
                words.append(str(value))
            elif isinstance(action, argparse.BooleanOptionalAction):
                words += () if value is None else action.option_strings[:1] if value else action.option_strings[-1:]
            elif action.nargs == 0:
                words += action.option_strings[:1] if value == action.const else ()
            elif value is not None and (only or value != action.default):
                for each in value if isinstance(value, list) else [value]:
                    words += [action.option_strings[0], "+".join(map(str, each)) if isinstance(each, tuple) else _word(each)]
        return words

    def runs(
        self, run: Handler, example: str, prints: str = "one JSON object", shapes: Sequence[str] = ("brief", "why")
    ) -> None:
        """Make this a command that calls ``run``.

        Args:
            prints: output of ``--json``, in words.
            shapes: further options for the form of the answer. Answers without sources have no ``why``.
        """
        self.epilog = example
        shape = self.add_mutually_exclusive_group()
        texts = {"brief": "print the answer in one line", "why": "print also what the answer rests on, with its sources"}
        for name in shapes:
            shape.add_argument(f"--{name}", action="store_true", help=texts[name])
        self.set_defaults(**{name: False for name in texts if name not in shapes})
        shape.add_argument("--json", action="store_true", help=f"print {prints} on stdout")
        self.set_defaults(run=run)

    def group(self, example: str, usual: str = "") -> Callable[[str, str], Parser]:
        """Make this a group of actions. Returns a function that adds one, by its name and one line of help.

        Args:
            usual: default action.
        """
        self.epilog = example
        self._usual = usual
        return adder(self, "action", "ACTION")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does. A group without a named action gets its default action."""
        if self._usual and args and args[0] not in ("-h", "--help"):
            actions = next(a.choices for a in self._actions if isinstance(a, argparse._SubParsersAction))
            if args[0] not in actions:
                args = [self._usual, *args]
        return super().parse_known_args(args, namespace)


def _word(value: object) -> str:
    """Format a value as a user would type it: ``10000``, not ``10000.0``."""
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def adder(parser: Parser, dest: str, metavar: str) -> Callable[[str, str], Parser]:
    """Return a function that adds a command with a one-line help to ``parser``."""
    commands = parser.add_subparsers(dest=dest, metavar=metavar, parser_class=Parser)

    def add(name: str, text: str) -> Parser:
        return commands.add_parser(name, help=text, description=text)

    return add


def parse(parser: Parser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse arguments. Raises UserError, for a misspelt option before the option that is missing because of it."""
    options: argparse.Namespace
    try:
        options, rest = parser.parse_known_args(arguments)
        command: Parser = options.parser
    except UsageError as error:
        command = error.parser
        own = arguments[: list(arguments).index("--")] if "--" in arguments else arguments
        rest = [a for a in own if a.startswith("--") and a.partition("=")[0] not in command.options()]
        if not rest:
            raise
    if not rest:
        return options
    option = next((a.partition("=")[0] for a in rest if a.startswith("-")), "")
    if option:
        wrong = _unknown_option(option, command, f"{command.prog} --help")
        hint = command.get_default("hint")
        raise UserError(wrong.message, f"{wrong.fix}; {hint}" if hint else wrong.fix)
    if "--cluster" in command.options() and rest[0][:1].isdigit():
        raise UserError(f"unexpected argument {rest[0]!r}", f"machines are an option: --cluster {rest[0]!r}")
    raise UsageError(f"unexpected argument {rest[0]!r}", command)


def _unknown_option(option: str, command: Parser, fix: str) -> UserError:
    """Return the error for an option that ``command`` does not take. It names what to write instead, or the nearest."""
    if instead := instead_of(option, command.prog.rpartition(" ")[2]):
        return UserError(f"unknown option {option!r}", f"{instead}; {fix}")
    if len(command.options()) <= _FEW:
        return unknown("option", option, command.options(), fix, few=_FEW)
    bare = {name.removeprefix("--"): name for name in command.options()}  # the dashes must not count as similarity
    near = [bare[name] for name in near_names(option.removeprefix("--"), bare)]
    return (
        unknown("option", option, near, fix, few=0) if near else UserError(f"unknown option {option!r}; nothing is near", fix)
    )
