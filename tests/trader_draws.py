"""Traders as hypothesis draws them: few and small, with many equal values, so that ties are common."""

from __future__ import annotations

from hypothesis import strategies as st

from paceline.market.mechanisms.traders import Trader

HIGHEST = 9
NAMES = "ABCDE"


def values(least: int = 0, most: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Marginal values, from the highest down."""
    drawn = st.lists(st.integers(0, HIGHEST), min_size=least, max_size=most)
    return drawn.map(lambda each: tuple(sorted(each, reverse=True)))


@st.composite
def markets(draw: st.DrawFn, one_unit: bool = False, owned: int = 3, least: int = 1) -> list[Trader]:
    """One to five sites.

    Args:
        one_unit: each has one unit to sell or wants one.
        owned: units that a site owns at most.
    """
    names = NAMES[: draw(st.integers(least, len(NAMES)))]
    if one_unit:
        return [Trader(name, draw(st.integers(0, min(owned, 1))), draw(values(1, 1))) for name in names]
    return [Trader(name, draw(st.integers(0, owned)), draw(values())) for name in names]


@st.composite
def false_reports(draw: st.DrawFn, truth: Trader, one_unit: bool = False) -> Trader:
    """What a site may say instead: other values, more or fewer wants, units withheld. It cannot offer units that it lacks."""
    if one_unit:
        stays_away = draw(st.integers(0, 9)) == 0
        return Trader(truth.name, 0, ()) if stays_away else Trader(truth.name, truth.owned, draw(values(1, 1)))
    return Trader(truth.name, draw(st.integers(0, truth.owned)), draw(values(0, 6)))
