"""Price of a better network: dollars per hour, or once over the years of its use."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from paceline.errors import UserError, shown
from paceline.units import parse_count, parse_seconds

FORMS = "write $2/h for the whole cluster, $0.10/device-hour, or '$50,000 over 3 years'"
_HOUR = r"\s*h(?:(?:ou)?r)?"
_PRICE = re.compile(
    rf"\s*\$?\s*(?P<dollars>[0-9.,]+\s*[a-z]*)\s*"
    rf"(?:(?P<device>/\s*(?:device|gpu)[\s-]*/?{_HOUR})|/{_HOUR}|\b(?:over|for)\b\s*(?P<life>.+))\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class UpgradePrice:
    """Dollars per hour that an upgrade adds, for the whole cluster and per device.

    ``text``: in the user's words.
    """

    text: str
    usd_per_hour: float = 0.0
    usd_per_device_hour: float = 0.0

    def hourly(self, devices: int) -> float:
        """Return dollars per hour for a cluster of ``devices`` devices."""
        return self.usd_per_hour + devices * self.usd_per_device_hour

    def __str__(self) -> str:
        return f"upgrade {self.text} (given by the user)"


def parse_upgrade_price(text: str) -> UpgradePrice:
    """Parse an upgrade price: ``$2/h`` for the whole cluster, ``$0.10/device-hour``, or ``$50,000 over 3 years``. A single
    payment is divided by all hours of its period, used or not.

    Raises:
        UserError: another form, such as dollars alone, which may be per hour or once.
    """
    match = _PRICE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise UserError(f"{shown(text)} is not the price of an upgrade", FORMS)
    try:
        dollars = parse_count(match["dollars"])
        hours = parse_seconds(match["life"].strip()) / 3600 if match["life"] else 1.0
    except UserError:
        dollars = hours = math.nan
    if not 0 <= dollars / hours < math.inf:
        raise UserError(f"{shown(text)} is not the price of an upgrade", FORMS)
    if match["device"]:
        return UpgradePrice(text.strip(), usd_per_device_hour=dollars)
    return UpgradePrice(text.strip(), usd_per_hour=dollars / hours)
