"""Sections of a command's options, in the order of its help."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

SECTIONS: Mapping[str, str] = {
    "machines": "the machines",
    "model": "the model",
    "fabric": "network cards and switches",
    "training": "how much is trained",
    "limits": "goal, limits and prices",
    "run": "the run",
    "parallelism": "division of the work",
    "memory": "memory",
    "exchange": "exchange of gradients",
    "software": "software and measured steps",
    "learning": "optimizer and learning rate",
    "jobs": "the jobs",
    "scheduler": "how devices are given out",
    "failures": "failures and checkpoints",
    "changes": "what is compared",
    "answer": "the answer",
}
"""Title of each section by its key. Choices name theirs at their declaration (``StrategyChoice.topic``)."""
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
