"""Options of the gradient exchange, the same for prediction and training."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from paceline.cli.arguments.choice_arguments import OF_EXCHANGE, PREDICTED, given_choices
from paceline.cli.guide.sections import section
from paceline.strategy import EXCHANGES, Exchange, GradientExchange
from paceline.strategy.choices.choice_values import Compound
from paceline.strategy.local.local_recipes import LOCAL_RECIPES, local_recipe, with_recipe
from paceline.strategy.strategy import CHOICES

COMPOUND = {name: item.values for name, item in CHOICES.items() if isinstance(item.values, Compound)}
"""Choices of several parts, by name. Each part has an option."""


def add_compression_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for parameters of the compression."""
    for option in (option for values in COMPOUND.values() for option in values.options):
        action: dict[str, Any] = {"action": "append"} if option.repeated else {"type": option.argument_type or str}
        section(parser, "exchange").add_argument(f"--{option.name}", metavar=option.metavar, help=option.help, **action)
    recipes = f"a published recipe of local steps, whose choices other options replace: {', '.join(LOCAL_RECIPES)}"
    section(parser, "local").add_argument("--local-recipe", metavar="NAME", help=recipes)


def named_exchange(o: argparse.Namespace) -> Exchange | None:
    """Return the exchange that an option names; None without one."""
    return EXCHANGES.get(o.exchange) if o.exchange else None


def exchange_choices(o: argparse.Namespace, before: GradientExchange | None = None) -> dict[str, Any]:
    """Return the given choices, as ``Strategy.of`` names them. Raises UserError.

    Args:
        before: exchange that the choices change, if any.
    """
    base = before or GradientExchange()
    choices = given_choices(o, (item for item in PREDICTED if item.part in OF_EXCHANGE))
    if o.local_recipe:
        choices = with_recipe(o.local_recipe, choices)
        if getattr(o, "optimizer", None) is None and before is None:
            choices["optimizer"] = local_recipe(o.local_recipe).optimizer

    def owner() -> GradientExchange:
        """Return the exchange whose parts the options change."""
        compression = choices.get("compression", base.compression.name)
        return base if compression == base.compression.name else GradientExchange(compression)

    for name, values in COMPOUND.items():
        given = [getattr(o, option.dest) for option in values.options]
        if any(part is not None for part in given):
            choices[name] = values.read(given, owner)
    return choices


def recipe_notes(o: argparse.Namespace, sync_every: int, optimizer: str) -> Iterator[str]:
    """Say what a run takes from a recipe of local steps; nothing without one."""
    if getattr(o, "local_recipe", None):
        yield from local_recipe(o.local_recipe).notes(sync_every, optimizer, o.optimizer is not None)
