"""Topics of ``paceline help``: commands, options, choices and their values, terms, and subjects such as machines."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from paceline.cli.guide.glossary import subjects, term, terms
from paceline.cli.parser import Parser
from paceline.errors import UserError
from paceline.exit_codes import exit_code_table
from paceline.names import SECTIONS, fold, near_names
from paceline.questions.asked import options_of
from paceline.questions.typed_words import typed_entry
from paceline.strategy.choices.choice import StrategyChoice
from paceline.strategy.choices.choice_values import Name
from paceline.strategy.frameworks import FRAMEWORKS
from paceline.strategy.strategy import CHOICES

EXIT_CODES = "exit-codes"
_NEAREST = 3


@dataclass(frozen=True)
class HelpTopic:
    """One thing that ``paceline help`` describes.

    Attributes:
        kind: ``command``, ``option``, ``value``, ``term`` or ``subject``.
        name: as a user types it.
        text: one sentence, or the help of a command.
        facts: names and texts of what follows.
    """

    kind: str
    name: str
    text: str
    facts: tuple[tuple[str, str], ...] = ()


def commands(parser: Parser, name: str = "") -> Iterator[tuple[str, Parser]]:
    """Yield every command and action with its parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, command in action.choices.items():
                yield f"{name} {word}".strip(), command
                yield from commands(command, f"{name} {word}".strip())


def find(words: str, parser: Parser) -> tuple[HelpTopic, ...]:
    """Return the topics of a name: ``zero3``, ``--precision``, ``schedule compare``, ``exit codes``.

    Raises:
        UserError: no topic has the name, with the nearest ones.
    """
    name = fold(words.lstrip("-"))
    every = topics(parser)
    found = tuple(topic for topic in every if fold(topic.name) == name)
    if not found and (entry := typed_entry(words)) and (options := options_of(entry[0])):
        here = HelpTopic("option", words.lstrip("-"), f"A name of other tools. Here it is --{options[0]}.")
        found = (here, *(topic for topic in every if topic.kind == "option" and topic.name == options[0]))
    if not found:
        near = near_names(words.lstrip("-"), dict.fromkeys(topic.name for topic in every), _NEAREST)
        known = f"nearest: {', '.join(near)}" if near else "nothing is near"
        raise UserError(f"no help on {words!r}; {known}", "paceline help lists the topics")
    return found


@cache
def topics(parser: Parser) -> tuple[HelpTopic, ...]:
    """Return every topic: commands first, then options, values, subjects and terms."""
    every = dict(commands(parser))
    verbs = [HelpTopic("command", name, command.format_help()) for name, command in every.items()]
    return (*verbs, *_options(every), *_values(), *_subjects(), *(HelpTopic("term", *each) for each in terms().items()))


def _options(every: Mapping[str, Parser]) -> Iterator[HelpTopic]:
    """Yield an option for each of its meanings, with the commands that take it."""
    by_choice = {f"--{name}": item for item in CHOICES.values() for name in (item.option, *item.other_options) if item.option}
    meanings: dict[tuple[str, str], list[str]] = {}
    shapes: dict[tuple[str, str], tuple[argparse.Action, str]] = {}
    for name, command in every.items():
        for group in command._action_groups:
            for action in group._group_actions:
                for option in (each for each in action.option_strings if each.startswith("--")):
                    text = str(action.help).replace("%%", "%")
                    if (item := by_choice.get(option)) and item.plan and name in ("plan", "ask"):
                        text = item.sentence()
                    meanings.setdefault((option, text), []).append(name)
                    shapes.setdefault((option, text), (action, str(group.title)))
    for (option, text), names in meanings.items():
        action, section = shapes[option, text]
        form = f"{option} {action.metavar}" if isinstance(action.metavar, str) and action.nargs != 0 else option
        others = [other for other in action.option_strings if other not in (option, "-h")]
        chosen = by_choice.get(option)
        facts = [("write", form), ("or", ", ".join(others)), ("commands", ", ".join(names))]
        facts.append(("section", section if section in SECTIONS.values() else ""))
        declared = _of_choice(chosen) if chosen and text == chosen.sentence() else ()
        yield HelpTopic("option", option.removeprefix("--"), text, (*facts, *declared))


def _of_choice(item: StrategyChoice) -> Iterator[tuple[str, str]]:
    """Yield what a choice's declaration says beyond its sentence."""
    yield "in Python", f"{item.name}={item.example or '...'}"
    yield "in tables", item.column
    yield "other words", ", ".join(_aliases(item))
    yield "source", item.source


def _aliases(item: StrategyChoice, value: str = "") -> list[str]:
    """Return other names of a choice's values, or of one value."""
    if not isinstance(item.values, Name):
        return []
    return [alias if value else f"{alias} = {of}" for alias, of in item.values.aliases.items() if value in ("", of)]


def _values() -> Iterator[HelpTopic]:
    """Yield the legal values of the choices, and the frameworks, by each of their names."""
    for item in CHOICES.values():
        option = f"--{item.option}" if item.option else item.name
        for value in map(str, item.values.names):
            if value.isdecimal():
                continue
            aliases = _aliases(item, value)
            facts = (("write", f"{option} {value}"), ("or", ", ".join(aliases)), ("it says", item.sentence()))
            for name in (value, *aliases):
                yield HelpTopic("value", name, f"A value of {option}." if name == value else f"{value}, of {option}.", facts)
    for name, framework in FRAMEWORKS.items():
        text = framework.title if isinstance(getattr(framework, "title", None), str) else name
        yield HelpTopic("value", name, f"A framework: {text}.", (("write", f"--framework {name}"),))


def _subjects() -> Iterator[HelpTopic]:
    """Yield the pages on machines, networks, models, files, prices and exit codes."""
    for name, subject in subjects().items():
        lines = tuple(("", line.replace("`", "")) for line in subject["text"])
        yield HelpTopic("subject", name, subject["title"], lines)
    codes = tuple((code, meaning.replace("`", "")) for code, meaning in exit_code_table())
    yield HelpTopic("subject", EXIT_CODES, "Exit codes of every command", codes)


def listed(verbs: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Return the kinds of topics with examples, for help without a topic."""
    return (
        ("commands", ", ".join(verbs)),
        ("subjects", ", ".join((*subjects(), EXIT_CODES))),
        ("options", "each option of each command: paceline help precision"),
        ("values", "each value of a choice: paceline help zero3"),
        ("terms", f"{len(terms())} words of the field: paceline help {next(t for t in terms() if term(t) and 'tensor' in t)}"),
    )
