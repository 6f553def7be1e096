"""The page of a federation."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from market.sites import job, site, two_sites
from paceline.market.federation.federation_answer import answer
from paceline.market.federation.site import Federation
from paceline.reporting.pages.answer_page import render
from paceline.reporting.pages.market_page import market_page


@pytest.mark.parametrize("rule", ["credits", "prices", "auction"])
def test_the_page_shows_gains_flows_and_the_verdict(rule: str) -> None:
    page = render(market_page(answer(two_sites(), rule)))
    for text in ("Who gains what", "Who lends to whom", "Does it hold?", f"Properties of {rule} in theory"):
        assert text in page
    assert "Devices lent over time" in page
    assert ("Prices over time" in page) == (rule != "credits")
    HTMLParser().feed(page)
    assert page == render(market_page(answer(two_sites(), rule)))


def test_names_are_text() -> None:
    sites = (site("<b>A</b>", [job("a", 0, 10), job("b", 0, 10)]), site("B", [job("c", 99, 1)]))
    page = render(market_page(answer(Federation(sites=sites))))
    assert "<b>A</b>" not in page and "&lt;b&gt;A" in page


def test_a_federation_that_lends_nothing_has_no_flows() -> None:
    sites = (site("A", [job("a", 0, 10)]), site("B", [job("b", 0, 10)]))
    page = render(market_page(answer(Federation(sites=sites))))
    assert "Devices lent over time" not in page and "Who lends to whom" in page
