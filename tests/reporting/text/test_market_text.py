"""Texts of a federation's answers."""

from __future__ import annotations

import math

import pytest

from market.sites import busy_and_idle, two_sites
from paceline.market.federation.federation_answer import answer
from paceline.market.game.settlement import savings_under
from paceline.market.sharing import sharing_game
from paceline.market.sharing.simulated_game import decide
from paceline.reporting.text.market_text import equilibrium_screen, market_screen, stability_screen, waited


def test_the_answer_names_every_site_and_what_it_gains() -> None:
    data = answer(two_sites(), "shapley").to_json()
    screen = market_screen(data)
    text = " ".join(block for block in map(str, screen.answer))
    assert "Sharing saves 0.556 job-hours" in text and "No site is worse off than alone." in text
    assert screen.brief.startswith("sharing saves 0.556 job-hours. Nobody gains by leaving")


def test_who_is_worse_off_is_named() -> None:
    data = {**answer(two_sites()).to_json(), "worse_off": ["A"]}
    assert any("Worse off than alone: A." in str(block) for block in market_screen(data).answer)


def test_stability_shows_the_division_that_holds() -> None:
    found = answer(two_sites(), "credits")
    data = {**found.to_json(), "least_core": found.verdict.least.shares.tolist()}
    assert stability_screen(data).brief.startswith("it holds")


def test_what_selfishness_costs_and_how_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    savings = savings_under(busy_and_idle(), "prices")
    all_tried = decide(savings, 0.1).to_json()
    text = str(equilibrium_screen(all_tried).answer)
    count = len(all_tried["equilibria"])
    assert count > 1 and f"All 81 profiles were tried: the game has {count} pure equilibria." in text
    assert f"Price of anarchy in $: 1. All sites could save $4.8 an hour; at the worst of {count} equilibria found" in text
    assert "Not in $, with each site's utility weighted by the devices that it offers (SC-Share), the ratio is 30." in text
    assert "values minus costs in $ an hour" in text and "(Koutsoupias and Papadimitriou 1999)" in text
    equal = [group for group in all_tried["equal_equilibria"] if len(group) > 1]
    assert equal and str(equilibrium_screen(all_tried).answer).count("0, 8") == 1
    monkeypatch.setattr(sharing_game, "MOST_ENUMERATED", 0)
    searched = decide(savings, 0.1).to_json()
    assert searched["equilibria"] and all(one["reached_from"] for one in searched["equilibria"])
    text = str(equilibrium_screen(searched).answer)
    assert "Best responses from nothing, half and everything shared, and the largest weighted welfare find" in text
    assert "not all 81 profiles were tried" in text
    nothing = {**all_tried, "equilibria": [], "price_of_anarchy": math.nan}
    assert "The price of anarchy is unknown: no equilibrium was found." in str(equilibrium_screen(nothing).answer)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"converged": True, "price": 1.234}, "The price comes to rest at $1.23 a device and hour: demand equals supply."),
        ({"converged": True, "price": 0.0}, "The price falls to 0: no site needs more devices than are offered."),
        ({"oscillates": True, "period_steps": 87.31}, "The price oscillates with a period of 87.3 steps: no price holds."),
        ({}, "The price has not come to rest in 20,000 steps: it is unknown."),
    ],
)
def test_what_becomes_of_a_price_that_follows_demand(changed: dict[str, object], sentence: str) -> None:
    base = {"price": math.nan, "converged": False, "oscillates": False, "period_steps": math.nan, "steps": 20_000}
    answered = decide(savings_under(busy_and_idle(), "prices"), 0.1).to_json()
    screen = equilibrium_screen({**answered, "dynamic_price": {**base, "bought": [1.5, -1.5], **changed}})
    assert sentence in str(screen.answer) and screen.brief.endswith(sentence)
    assert ("+1.5" in str(screen.answer)) == bool(changed.get("converged"))


@pytest.mark.parametrize(("seconds", "text"), [(None, "unknown"), (math.nan, "unknown"), (0.0, "0 s"), (90.0, "90.0 s")])
def test_waits(seconds: float | None, text: str) -> None:
    assert waited(seconds) == text
