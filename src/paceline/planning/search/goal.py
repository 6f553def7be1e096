"""Goals of a plan: the shortest time, the lowest cost, or one of them within a limit on the other."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime
from statistics import NormalDist
from typing import Literal

from paceline.array_types import Array
from paceline.calibration.uncertainty import Z80
from paceline.errors import UserError, unknown
from paceline.planning.search.deadline import seconds_until
from paceline.units import format_seconds, parse_seconds

_TIMES = "write it as deadline=90min, deadline=6h or deadline=2d"
GoalKind = Literal["fastest", "cheapest", "deadline", "budget"]
KINDS: tuple[GoalKind, ...] = ("fastest", "cheapest", "deadline", "budget")


@dataclass(frozen=True, slots=True)
class Goal:
    """Goal of a plan: ``fastest``; ``cheapest``; cheapest within a ``deadline`` of ``limit`` seconds; fastest within a
    ``budget`` of ``limit`` dollars.
    """

    kind: GoalKind
    limit: float = math.inf

    @property
    def by_cost(self) -> bool:
        """Return whether choices that meet the goal are ranked by cost; else by time."""
        return self.kind in ("cheapest", "deadline")

    @property
    def needs_price(self) -> bool:
        """Return whether the goal needs prices."""
        return self.kind != "fastest"

    def score(self, time_s: Array, usd: Array) -> Array:
        """Return the quantity to minimize, for each candidate."""
        return usd if self.by_cost else time_s

    def limited(self, time_s: Array, usd: Array) -> Array:
        """Return the quantity that ``limit`` bounds."""
        return usd if self.kind == "budget" else time_s

    def chance(self, value: float, low: float, high: float) -> float | None:
        """Return the probability that a quantity of median ``value`` and 80 % interval ``low`` to ``high`` is within the limit.

        Each side is half of a log-normal distribution. None without a limit.
        """
        if math.isinf(self.limit):
            return None
        spread = abs(math.log((high if self.limit > value else low) / value)) / Z80 if value else 0.0
        return NormalDist().cdf(math.log(self.limit / value) / spread) if spread else float(value <= self.limit)

    def amount(self, value: float) -> str:
        """Format ``value`` in the unit of the limit."""
        return money(value) if self.kind == "budget" else format_seconds(value)

    def __str__(self) -> str:
        return self.kind if math.isinf(self.limit) else f"{self.kind}={self.amount(self.limit)}"


def money(usd: float) -> str:
    """Format dollars, with cents below a hundred."""
    if not math.isfinite(usd):
        return "unknown"
    return f"${usd:,.0f}" if abs(usd) >= 100 else f"${usd:.2f}" if abs(usd) >= 1 else f"${usd:.3g}"


def _day(text: str) -> float | None:
    """Return seconds until a day or a date; None for other text."""
    try:
        return seconds_until(text, datetime.now().astimezone())
    except UserError:
        return None


def parse_goal(text: str) -> Goal:
    """Parse ``fastest``, ``cheapest``, ``deadline=6h``, ``deadline=friday`` or ``budget=500`` (dollars).

    Raises UserError for anything else.
    """
    name, _, value = text.strip().partition("=")
    kind = next((k for k in KINDS if k == name), None)
    if kind is None:
        raise unknown("goal", name, ["fastest", "cheapest", "deadline=6h", "budget=500"])
    if kind in ("fastest", "cheapest"):
        if value:
            raise UserError(f"goal {name} takes no value, {value!r} was given", "leave it out")
        return Goal(kind)
    if kind == "deadline":
        if not value:
            raise UserError("goal deadline has no time", _TIMES)
        minutes = re.fullmatch(r"\s*([0-9.]+)\s*m\s*", value)
        try:
            return Goal(kind, parse_seconds(f"{minutes[1]}min" if minutes else value))
        except UserError as error:
            if (until := _day(value)) is not None:
                return Goal(kind, until)
            raise UserError(error.message.replace(f"{minutes[1]}min", value) if minutes else error.message, _TIMES) from None
    try:
        dollars = float(value.strip().removeprefix("$").replace(",", ""))
    except ValueError:
        dollars = math.nan
    if not 0 < dollars < math.inf:
        raise UserError(f"budget {value!r} is not an amount of dollars", "write it as budget=500")
    return Goal(kind, dollars)
