"""Texts of a federation's answers."""

from __future__ import annotations

import math

import pytest

from market.sites import two_sites
from paceline.market.federation_answer import answer
from paceline.reporting.market_text import market_screen, stability_screen, waited


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


@pytest.mark.parametrize(("seconds", "text"), [(None, "unknown"), (math.nan, "unknown"), (0.0, "0 s"), (90.0, "90.0 s")])
def test_waits(seconds: float | None, text: str) -> None:
    assert waited(seconds) == text
