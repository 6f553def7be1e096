"""Choices of a strategy as the settings of a tool, in its own words: ``per_device_train_batch_size 2``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from paceline.questions.asked import STATED
from paceline.strategy import Strategy
from paceline.strategy.choices.synonyms import LEFT_OPEN, Synonym, worded
from paceline.strategy.choices.tool_names import count
from paceline.strategy.choices.values import plain
from paceline.strategy.strategy import CHOICES


def own_settings(tool: str, strategy: Strategy) -> tuple[tuple[str, str], ...]:
    """Return names and values of the settings with which a tool runs a strategy, as far as their names are declared.

    Args:
        tool: a key of ``synonyms.TOOLS``.
    """
    return tuple(_settings(tool, strategy))


def _settings(tool: str, strategy: Strategy) -> Iterator[tuple[str, str]]:
    yield from _setting(tool, STATED["micro_batch_size"].synonyms, strategy.micro_batch_size)
    for item in CHOICES.values():
        value = plain(strategy.choice(item.name))
        if item.recorded or value != plain(item.default):
            yield from _setting(tool, item.synonyms, value)


def _setting(tool: str, synonyms: Iterable[Synonym], value: Any) -> Iterator[tuple[str, str]]:
    """Yield the first name that a tool has for a value; none if it has no such value."""
    for synonym in synonyms:
        if tool in synonym.tools and (text := _text(synonym, value)):
            yield synonym.name, text
            return


def _text(synonym: Synonym, value: Any) -> str:
    """Return how the tool writes a value; empty if that is not known."""
    if synonym.values is None or synonym.values is count:
        return worded(value)
    if isinstance(synonym.values, Mapping):
        return next((theirs for theirs, ours in synonym.values.items() if ours == value and theirs not in LEFT_OPEN), "")
    return ""
