"""Prices of upgrades as people write them."""

from __future__ import annotations

import pytest

from facts import facts
from paceline.errors import UserError
from paceline.hardware.upgrade_price import parse_upgrade_price

HOURS = 3 * 365.25 * 24


@pytest.mark.parametrize(
    ("text", "hourly"),
    [
        ("$2/h", 2.0),
        ("2 / hour", 2.0),
        ("$0/h", 0.0),
        ("$0.10/device-hour", 1.6),
        ("0.1/device-h", 1.6),
        ("0.1/GPU/h", 1.6),
        ("$50,000 over 3 years", 50_000 / HOURS),
        ("50k over 3 years", 50_000 / HOURS),
        ("$876.6 for 1 year", 0.1),
    ],
)
def test_dollars_an_hour_of_sixteen_devices(text: str, hourly: float) -> None:
    assert parse_upgrade_price(text).hourly(16) == pytest.approx(hourly)


@pytest.mark.parametrize(
    "text", ["", "2", "$2", "free", "$2/month", "-2/h", "$1 over", "$1 over 0 years", "1 over long", "nan/h"]
)
def test_what_is_no_price_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(UserError, match=facts("price of an upgrade", "$2/h")):
        parse_upgrade_price(text)
