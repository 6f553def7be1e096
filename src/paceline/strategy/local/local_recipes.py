"""Published recipes of local steps, by name: interval, outer step, compression of the pseudo-gradients.

A recipe is a set of choices of a strategy. Choices that a user gives replace those of the recipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from paceline.errors import unknown
from paceline.strategy.gradient_exchange import GradientExchange
from paceline.strategy.local_steps import LocalSteps


@dataclass(frozen=True, slots=True)
class LocalRecipe:
    """Choices of one published method.

    Attributes:
        method: its name as the paper writes it. ``title``: the method in words.
        choices: its choices, named as in ``Strategy.of``.
        optimizer: optimizer that the paper uses within a worker, and that commands take if none is named. It is no part of
            ``choices``.
        source: paper and section.
    """

    name: str
    method: str
    title: str
    choices: Mapping[str, Any]
    optimizer: str
    source: str

    @property
    def exchange(self) -> GradientExchange:
        """Exchange of the pseudo-gradients."""
        names = {f.name for f in fields(GradientExchange)}
        return GradientExchange.from_json({name: value for name, value in self.choices.items() if name in names})

    @property
    def local(self) -> LocalSteps:
        """Interval of the exchanges, and the outer step."""
        names = {f.name for f in fields(LocalSteps)}
        return LocalSteps(**{name: value for name, value in self.choices.items() if name in names})

    def notes(self, sync_every: int, optimizer: str, named: bool) -> Iterator[str]:
        """Say what a command takes from the recipe. ``optimizer``: the one that runs; ``named``: whether the user named it."""
        yield f"{self.method}: {self.title}, every {sync_every} steps ({self.source})."
        if not named and optimizer == self.optimizer:
            yield f"No --optimizer was given: {optimizer}, as its authors take."
        elif optimizer != self.optimizer:
            yield f"Its authors take {self.optimizer} within a worker, and this run {optimizer}."


def _read() -> Mapping[str, LocalRecipe]:
    """Return the recipes of ``local_recipes.toml``."""
    import tomllib
    from importlib.resources import files

    text = files("paceline.strategy.local").joinpath("local_recipes.toml").read_text(encoding="utf-8")
    return {name: LocalRecipe(name, **written) for name, written in tomllib.loads(text).items()}


LOCAL_RECIPES: Mapping[str, LocalRecipe] = _read()
"""All recipes by name."""


def local_recipe(name: str) -> LocalRecipe:
    """Return a recipe by its name. Raises UserError for another name."""
    if name not in LOCAL_RECIPES:
        raise unknown("recipe of local steps", name, LOCAL_RECIPES)
    return LOCAL_RECIPES[name]


def with_recipe(name: str, choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe's choices, replaced by the given ones. Another compression drops the recipe's options.

    Raises:
        UserError: another name than those of ``LOCAL_RECIPES``.
    """
    recipe = dict(local_recipe(name).choices)
    if choices.get("compression", recipe["compression"]) != recipe["compression"]:
        recipe.pop("options", None)
    return {**recipe, **choices}
