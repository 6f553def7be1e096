"""Numbers of sites and bandwidths as options."""

from __future__ import annotations

import pytest

from paceline.cli.arguments.site_arguments import parse_bandwidths, parse_latency, parse_sites
from paceline.errors import UserError


def test_numbers_of_sites_double() -> None:
    assert parse_sites("2") == (2,)
    assert parse_sites("2..64") == (2, 4, 8, 16, 32, 64)
    assert parse_sites("3..20") == (3, 6, 12, 20)
    assert parse_sites("2,5,9") == (2, 5, 9)


def test_bandwidths_are_even_by_factors() -> None:
    assert parse_bandwidths("1Gb/s") == (1.25e8,)
    many = parse_bandwidths("0.1..100Gb/s")
    assert len(many) == 13 and many[0] == pytest.approx(1.25e7) and many[-1] == pytest.approx(1.25e10)
    assert parse_bandwidths("100Mb/s..1Gb/s")[0] == pytest.approx(1.25e7)
    assert parse_latency(None) is None and parse_latency("30ms") == pytest.approx(0.03)


@pytest.mark.parametrize("text", ["1", "x", "64..2", "2,2", "0..4", "9999"])
def test_wrong_numbers_of_sites_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="write 2"):
        parse_sites(text)


@pytest.mark.parametrize("text", ["fast", "100..1Gb/s", "1..Gb/s"])
def test_wrong_bandwidths_are_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse_bandwidths(text)
