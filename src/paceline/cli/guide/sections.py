"""Sections of a command's options, in the order of its help."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from paceline.names import SECTIONS

FEW = 20
"""Most options of a command whose ``--help`` shows all of them."""


def section(parser: argparse.ArgumentParser, key: str) -> argparse._ActionsContainer:
    """Return a section of the parser's options, which is made at the first use."""
    title = SECTIONS[key]
    found = (group for group in parser._action_groups if group.title == title)
    return next(found, None) or parser.add_argument_group(title)


def common(action: argparse.Action) -> None:
    """Mark an option as one of the few that most users need. ``--help`` shows these, ``--help-all`` every option."""
    action.common = True  # type: ignore[attr-defined]


def is_common(action: argparse.Action) -> bool:
    """Return whether ``common`` marks the option."""
    return getattr(action, "common", False)


def ordered(parser: argparse.ArgumentParser) -> Iterator[argparse._ArgumentGroup]:
    """Yield the groups of a parser that hold actions: operands, sections in their order, then the rest."""
    titles = list(SECTIONS.values())
    operands, rest, *sections = parser._action_groups
    for group in (operands, *sorted(sections, key=lambda group: titles.index(str(group.title))), rest):
        if group._group_actions:
            yield group
