"""Recipes of local steps: the choices of papers, and those that replace them."""

from __future__ import annotations

import pytest

from facts import facts
from paceline.errors import UserError
from paceline.strategy import LOCAL_RECIPES, Strategy
from paceline.strategy.local.local_recipes import local_recipe, with_recipe


@pytest.mark.parametrize("name", LOCAL_RECIPES)
def test_a_recipe_is_a_strategy(name: str) -> None:
    recipe = local_recipe(name)
    strategy = Strategy.of(world_size=4, global_batch_size=64, **recipe.choices)
    assert (strategy.gradient_exchange, strategy.local) == (recipe.exchange, recipe.local)


def test_sparseloco_has_residuals_in_place_of_the_outer_momentum() -> None:
    local = local_recipe("sparseloco").local
    assert (local.outer_lr, local.outer_momentum, local.residual_decay) == (1.0, 0.0, 0.95)


def test_choices_of_the_user_replace_those_of_the_recipe() -> None:
    chosen = with_recipe("sparseloco", {"sync_every": 15, "compression": "sign"})
    assert chosen["sync_every"] == 15 and chosen["outer_lr"] == 1.0 and "options" not in chosen
    assert Strategy.of(world_size=2, global_batch_size=2, **chosen).local.residual_decay == 0.95


def test_another_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=facts("sparselocco", "sparseloco")):
        local_recipe("sparselocco")


@pytest.mark.parametrize(
    ("optimizer", "named", "said"),
    [
        ("muon", False, "No --optimizer was given: muon"),
        ("muon", True, ""),
        ("sgd", True, "Its authors take muon within a worker"),
    ],
)
def test_the_recipe_and_its_optimizer_are_said(optimizer: str, named: bool, said: str) -> None:
    first, *others = local_recipe("muloco").notes(15, optimizer, named)
    assert first.startswith("MuLoCo: steps of Muon") and ", every 15 steps (Therien" in first
    assert [note[: len(said)] for note in others] == ([said] if said else [])
