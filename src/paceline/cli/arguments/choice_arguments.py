"""Options of the choices about a run, built from their declarations (``strategy/choices/choice.py``)."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from paceline.cli.guide.sections import common, section
from paceline.strategy.choices.choice import StrategyChoice
from paceline.strategy.choices.choice_values import Flag
from paceline.strategy.choices.values import plain
from paceline.strategy.sharding import ZERO3
from paceline.strategy.strategy import CHOICES, Strategy

OF_EXCHANGE = frozenset({"gradient_exchange", "local"})
"""Parts of a strategy whose missing options are None, since a resumed run takes its earlier values."""
PREDICTED = tuple(item for item in CHOICES.values() if item.option)
"""Choices with options of ``predict``, ``whatif`` and ``explain``."""
SEARCHED = tuple(item for item in PREDICTED if item.plan and item.plan.option)
"""Choices with options of ``plan``."""
_OF_HOST = ("optimizer", "offload")
"""Choices of what the host updates."""
TRAINED = tuple(sorted((item for item in PREDICTED if item.train.option), key=lambda item: not item.part))
"""Choices with options of ``train``, those of ``Strategy`` itself last."""


def add_choice_arguments(parser: argparse.ArgumentParser, items: Iterable[StrategyChoice], *, only_given: bool = False) -> None:
    """Add the option of each choice.

    Args:
        only_given: True if a missing option has the value None, not the choice's default.
    """
    for item in items:
        usual = None if only_given else usual_argument(item)
        action = _add(parser, item, item.sentence(item.train.help if only_given else ""), usual)
        if item.common:
            common(action)


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``plan`` and ``ask`` that narrow their searches."""
    each = "samples of one device in a micro step; may be repeated"
    place = section(parser, CHOICES["global_batch_size"].topic)
    place.add_argument("--micro-batch-size", metavar="B", type=int, action="append", help=each)
    for item in SEARCHED:
        assert item.plan is not None
        text = item.sentence(item.plan.help)
        if item.plan.single:
            _add(parser, item, text, usual_argument(item))
        else:
            bare: dict[str, Any] = {"nargs": "?", "const": item.bare} if item.bare else {}
            place = section(parser, item.topic)
            place.add_argument(*_names(item), metavar=item.metavar, **_type(item), **bare, action="append", help=text)


def _add(parser: argparse.ArgumentParser, item: StrategyChoice, text: str, usual: Any) -> argparse.Action:
    place = section(parser, item.topic)
    if isinstance(item.values, Flag):
        action = "store_false" if item.default else "store_true"
        return place.add_argument(*_names(item), dest=item.dest, action=action, default=usual, help=text)
    if item.bare:
        return place.add_argument(*_names(item), metavar=item.metavar, nargs="?", const=item.bare, default=usual, help=text)
    return place.add_argument(*_names(item), metavar=item.metavar, **_type(item), default=usual, help=text)


def _type(item: StrategyChoice) -> dict[str, Any]:
    kind = item.values.argument_type
    return {"type": kind} if kind else {}


def _names(item: StrategyChoice) -> list[str]:
    return [f"--{name}" for name in (item.option, *item.other_options)]


def usual_argument(item: StrategyChoice) -> Any:
    """Return the default of an option of ``predict``, parsed."""
    if item.rule or item.part in OF_EXCHANGE or not item.has_default:
        return None
    return item.values.to_argument(item.default)


def given_choices(o: argparse.Namespace, items: Iterable[StrategyChoice]) -> dict[str, Any]:
    """Return the choices whose options have a value, under the names of ``Strategy.of``. Raises UserError for an illegal
    text."""
    values = {item: getattr(o, item.dest, None) for item in items}
    return {item.name: item.values.from_argument(value) for item, value in values.items() if value is not None}


def narrowed_choices(o: argparse.Namespace) -> dict[str, list[Any]]:
    """Return the values of each choice whose option narrows a search, under the names of ``Strategy.of``.

    Raises:
        UserError: an offload that the optimizer does not have. A search would leave it out silently.
    """
    named: dict[str, list[Any]] = {}
    for item in SEARCHED:
        given = getattr(o, item.dest)
        assert item.plan is not None
        if given is None or (item.plan.single and given == plain(item.default)):
            continue
        named[item.name] = [given] if item.plan.single else given
    stated = {name: named[name][0] for name in _OF_HOST if len(named.get(name, ())) == 1}
    if len(stated) == len(_OF_HOST):
        Strategy.of(world_size=2, global_batch_size=2, sharding=ZERO3.name, **stated)
    return named
