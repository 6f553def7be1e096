"""Strategy stated by a job's owner, in the syntax of ``whatif``: ``zero3``, ``tensor=4+recompute=full``."""

from __future__ import annotations

from typing import Any

from paceline.errors import UserError, shorten, unknown
from paceline.planning.compare.strategy_text import ALIASES, WORDS, choice_value

NAMES = tuple(word for word, item in WORDS.items() if item.name not in ("global_batch_size", "world_size"))
"""Choices that a job may state. Its batch and devices have separate columns."""


def parse_strategy(text: str) -> dict[str, Any]:
    """Parse choices, named as in ``Strategy.of``. A word without a value is a sharding: ``zero3`` is ``sharding=zero3``.

    Args:
        text: choices joined by plus signs.

    Raises:
        UserError: an unknown choice or value, or one that is named twice.
    """
    choices: dict[str, Any] = {}
    for part in text.split("+"):
        given, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            given, value = "sharding", WORDS["sharding"].values.parse(given, "strategy")
        hyphenated = given.replace("_", "-")
        name = ALIASES.get(hyphenated, hyphenated)
        if name not in NAMES:
            raise unknown("choice of a strategy", name, NAMES, "write it as zero3, or tensor=4+pipeline=2")
        if WORDS[name].name in choices:
            raise UserError(f"strategy {shorten(text)!r} names {name} twice", "name each choice once")
        choices[WORDS[name].name] = choice_value(name, value)
    return choices
