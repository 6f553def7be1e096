"""A choice is declared at its field; names, checks and texts follow from there."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from paceline.errors import UserError
from paceline.strategy import GradientExchange, Parallelism
from paceline.strategy.choices.choice import RUNS, Need, check_needs, check_values, choice, collected, declared, plain_values
from paceline.strategy.choices.choice_values import Flag, Name, WholeNumber
from paceline.strategy.strategy import CHOICES


@dataclass(frozen=True)
class Oven:
    """A part of a strategy that no strategy has."""

    deck_count: int = choice(1, WholeNumber("decks"), "decks (default {default})", metavar="N")
    heat: str = choice("top", Name("heat", ("top", "all")), "one of {legal}", option="", column="c", train=RUNS)
    steam: bool = choice(
        False,
        Flag(),
        "steam",
        title="with steam",
        needs=(Need(lambda oven: oven.deck_count > 1, "{words} of {of.deck_count} deck, {name}={value}", "give decks"),),
    )

    def __post_init__(self) -> None:
        check_values(self)
        check_needs(self)


def test_names_follow_from_the_field() -> None:
    decks, heat, _ = declared(Oven, "oven")
    assert (decks.name, decks.option, decks.dest, decks.word, decks.column) == (
        "deck_count",
        "deck-count",
        "deck_count",
        "deck-count",
        "deck_count",
    )
    assert (heat.option, heat.word, heat.column, heat.part) == ("", "heat", "c", "oven")
    assert (decks.sentence(), heat.sentence(), heat.sentence("{help}; also")) == (
        "decks (default 1)",
        "one of top, all",
        "one of top, all; also",
    )
    assert list(collected(Oven, {})) == ["deck_count", "heat", "steam"]


def test_a_list_of_choices_says_the_title_of_a_legal_value() -> None:
    decks, _, steam = declared(Oven, "oven")
    assert (decks.listed(2), steam.listed(True), steam.listed("damp")) == ("", "with steam", "")
    assert (replace(decks, title="{value} decks").listed(2), replace(decks, title="{of.heat}").listed(2)) == ("2 decks", "")
    assert CHOICES["context"].listed(2) == "context 2" and not CHOICES["offload"].listed("optimizer")


def test_values_and_needs_are_checked() -> None:
    assert Oven(2, "ALL", True).heat == "all"
    with pytest.raises(UserError, match="unknown heat 'left'"):
        Oven(heat="left")
    with pytest.raises(UserError, match="steam of 1 deck, steam=True; give decks"):
        Oven(steam=True)


def test_a_later_choice_is_written_where_it_is_not_the_default() -> None:
    narrow = GradientExchange("powersgd", residual_bits=16, dense_bits=16)
    assert plain_values(narrow) == {**plain_values(GradientExchange("powersgd")), "residual_bits": 16, "dense_bits": 16}
    assert "dense_bits" not in plain_values(GradientExchange("powersgd")) and plain_values(Parallelism())["sharding"] == "ddp"


@pytest.mark.parametrize("name", CHOICES)
def test_an_example_is_legal(name: str) -> None:
    item = CHOICES[name]
    if item.word:
        item.values.check(item.values.parse(item.example, item.word), item.word)
    assert item.help and item.sentence() and item.plan != item.train
