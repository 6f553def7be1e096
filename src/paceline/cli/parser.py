"""Argument parser with one-line errors, for commands and groups of actions."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from paceline.cli.arguments.other_options import instead_of
from paceline.cli.guide.sections import FEW, is_common, ordered, section
from paceline.errors import UserError, unknown
from paceline.names import near_names

if TYPE_CHECKING:
    from paceline.cli.arguments.own_words import Words
    from paceline.reporting.text.screen import Screen

Answer = tuple[dict[str, Any] | list[dict[str, Any]], "Screen"]
"""A command's answer, as JSON (a list: one object a line) and for the terminal."""
Handler = Callable[[argparse.Namespace], Answer]
_FEW = 6  # an error lists all options of a command with at most this many
_SHAPES = {
    "brief": ("one line", "print the answer in one line"),
    "why": ("with its sources", "print also what the answer rests on, with its sources"),
}
"""Forms of an answer, in few words and in a sentence."""
_SETTINGS = (".json", ".yaml", ".yml", ".toml", ".sh", ".py")
"""Endings of other tools' files of settings."""
_WORKLOAD = "workload"
"""Operand of commands about a network, whose own options may have values of other tools."""
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
        self.add_argument("--help-all", action=_HelpAll, nargs=0, default=argparse.SUPPRESS, help="show every option and exit")
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
        """Return every option that this command takes, except ``--help-all``."""
        named = (action.option_strings for action in self._actions if not isinstance(action, _HelpAll))
        return [name for names in named for name in names if name.startswith("--")]

    def format_help(self) -> str:
        """Return the help: the common options of a command with many, otherwise all."""
        options = [action for group in ordered(self) for action in group._group_actions if action.option_strings]
        few = [action for action in options if is_common(action)]
        if len(options) <= FEW or not few:
            return self.full_help()
        formatter = self._get_formatter()
        self._begin(formatter, short=True)
        formatter.start_section("common options")
        formatter.add_arguments(few)
        formatter.end_section()
        name = few[0].option_strings[0].removeprefix("--")
        more = f"{len(options) - len(few)} more options: {self.prog} --help-all. More on one: paceline help {name}."
        formatter.add_text(more)
        shapes = [f"--{name} ({short})" for name, (short, _) in _SHAPES.items() if f"--{name}" in self._option_string_actions]
        formatter.add_text(f"form of the answer: {', '.join([*shapes, '--json'])}")
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def full_help(self) -> str:
        """Return the help with every option, in sections."""
        formatter = self._get_formatter()
        self._begin(formatter, short=False)
        for group in ordered(self):
            if group is self._positionals:
                continue
            formatter.start_section(group.title)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _begin(self, formatter: argparse.HelpFormatter, short: bool) -> None:
        """Add the usage, the line on the command and its operands."""
        operands = self._positionals._group_actions
        names = " ".join(f"{action.metavar}" for action in operands)
        many = short or len(self._actions) > FEW
        usage = " ".join(filter(None, (self.prog, names, "[options]"))) if many else None
        formatter.add_usage(usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        if operands:
            formatter.start_section(self._positionals.title)
            formatter.add_arguments(operands)
            formatter.end_section()

    def valued_options(self) -> list[str]:
        """Return the options that take a value."""
        return [name for action in self._actions if action.nargs != 0 for name in action.option_strings]

    def listing_options(self) -> list[str]:
        """Return the options that take several values."""
        return [name for action in self._actions if action.nargs in ("+", "*") for name in action.option_strings]

    def operands(self) -> list[str]:
        """Return the names of the operands."""
        return [action.dest for action in self._actions if not action.option_strings]

    def commands(self) -> dict[str, Parser]:
        """Return the commands or the actions of this group by name; empty for a command."""
        return next((dict(a.choices) for a in self._actions if isinstance(a, argparse._SubParsersAction)), {})

    def words(self, options: argparse.Namespace, only: Collection[str] = ()) -> list[str]:
        """Return the words that a user types for these options, without ``--json``.

        Args:
            only: names of options; by default the operands and all options with other values than their defaults.
        """
        words: list[str] = []
        for action in self._actions:
            value = getattr(options, action.dest, None)
            if action.dest in ("json", "help", "help_all") or action.dest not in (only or vars(options)):
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
        shape = section(self, "answer").add_mutually_exclusive_group()
        for name in shapes:
            shape.add_argument(f"--{name}", action="store_true", help=_SHAPES[name][1])
        self.set_defaults(**{name: False for name in _SHAPES if name not in shapes})
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


class _HelpAll(argparse.Action):
    """Option that prints every option of a command."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: object, values: object, option: str | None = None) -> None:
        assert isinstance(parser, Parser)
        print(parser.full_help(), end="")
        parser.exit()


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
    arguments, words = _in_own_words(parser, arguments)
    try:
        options, rest = parser.parse_known_args(arguments)
        command: Parser = options.parser
        options.read_as = words
    except UsageError as error:
        command = error.parser
        own = arguments[: list(arguments).index("--")] if "--" in arguments else arguments
        rest = [a for a in own if a.startswith("--") and a.partition("=")[0] not in command.options()]
        if not rest:
            raise
    if not rest:
        return options
    wrong_options = [a.partition("=")[0] for a in rest if a.startswith("-")]
    if wrong_options:
        wrong = _unknown_option(wrong_options, command, f"{command.prog} --help")
        hint = command.get_default("hint")
        raise UserError(wrong.message, f"{wrong.fix}; {hint}" if hint else wrong.fix)
    if "--from" in command.options() and rest[0].endswith(_SETTINGS):
        raise UserError(f"unexpected argument {rest[0]!r}", f"a file of another tool is read by --from {rest[0]}")
    if "--cluster" in command.options() and rest[0][:1].isdigit():
        raise UserError(f"unexpected argument {rest[0]!r}", f"machines are an option: --cluster {rest[0]!r}")
    raise UsageError(f"unexpected argument {rest[0]!r}", command)


def _in_own_words(parser: Parser, arguments: Sequence[str]) -> tuple[Sequence[str], Words | None]:
    """Return the arguments with options of other tools and files in the command's own words, and what was read into them."""
    place = 0
    while (actions := parser.commands()) and place < len(arguments):
        word = arguments[place]
        place += 1
        if word in actions:
            parser = actions[word]
    legal, operands = parser.options(), parser.operands()
    options = {word.partition("=")[0] for word in arguments[place:] if word.startswith("--")}
    if "--json" not in legal or not options or (_WORKLOAD not in operands and options <= {*legal, "--"}):
        return arguments, None
    from paceline.cli.arguments.own_words import in_own_words  # what is declared takes time to load

    words = in_own_words(parser.prog, arguments[place:], (*legal, *operands), parser.valued_options(), parser.listing_options())
    return [*arguments[:place], *words.arguments], words


def _of_compression(option: str) -> str:
    """Return how an option of a compression is written; empty for any other."""
    from paceline.strategy.compression.compressions import COMPRESSIONS

    name = option.removeprefix("--").replace("-", "_")
    if name.rstrip("s") == "compression_option":
        return "write --option NAME=VALUE, an option of the compression"
    legal = {each.name for compression in COMPRESSIONS.values() for each in compression.options}
    return f"write --option {name}=VALUE" if name in legal else ""


def _unknown_option(options: Sequence[str], command: Parser, fix: str) -> UserError:
    """Return the error for the first option that ``command`` does not take. It names what to write instead, or the nearest."""
    option, verb = options[0], command.prog.rpartition(" ")[2]
    if instead := instead_of(option, verb):
        return UserError(f"unknown option {option!r}", f"{instead}; {fix}")
    if "--option" in command.options() and (instead := _of_compression(option)):
        return UserError(f"unknown option {option!r}", f"{instead}; {fix}")
    advice = ""
    if _WORKLOAD in command.operands():
        from paceline.cli.arguments.unneeded_options import amount, ignored_in_files, together, unneeded

        if amount(option) and (instead := instead_of("--samples", verb)):
            return UserError(f"unknown option {option!r}", f"{instead}; {fix}")
        if advice := unneeded(option):
            names = together(options, advice)
            return UserError(f"unknown option{'s' if len(names) > 1 else ''} {', '.join(names)}", advice)
        advice = ignored_in_files(option)
    if len(command.options()) <= _FEW:
        return unknown("option", option, command.options(), fix, few=_FEW)
    bare = {name.removeprefix("--"): name for name in command.options()}  # the dashes must not count as similarity
    near = [bare[name] for name in near_names(option.removeprefix("--"), bare)]
    if near:
        return unknown("option", option, near, fix, few=0)
    return UserError(f"unknown option {option!r}; nothing is near", advice or fix)
