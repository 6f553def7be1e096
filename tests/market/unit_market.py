"""A market of identical units for one period, by which the claims about posted prices are tested, and drawn traders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

HIGHEST = 9
NAMES = "ABCDE"


@dataclass(frozen=True)
class Trader:
    """A site with ``owned`` units. ``values``: marginal values of its first, second, ... unit, from the highest down."""

    name: str
    owned: int
    values: tuple[int, ...]

    @property
    def bids(self) -> tuple[int, ...]:
        """Most that it pays for each unit beyond its own."""
        return self.values[self.owned :]

    @property
    def asks(self) -> tuple[int, ...]:
        """Lowest price that it accepts for each unit it owns; 0 for a unit without use."""
        used = self.values[: self.owned]
        return (0,) * (self.owned - len(used)) + used[::-1]

    def value(self, units: int) -> int:
        """Value of using some units."""
        return sum(self.values[:units])

    def payoff(self, bought: int, payment: int) -> int:
        """Gain over staying alone; negative arguments where it sells."""
        return self.value(self.owned + bought) - self.value(self.owned) - payment


def most_value(traders: Sequence[Trader]) -> int:
    """Largest total value of all units."""
    owned = sum(trader.owned for trader in traders)
    return sum(sorted((value for trader in traders for value in trader.values), reverse=True)[:owned])


def dual_price(traders: Sequence[Trader]) -> int:
    """Lowest price at which demand equals supply: the dual of the linear program of the largest total value."""
    owned = sum(trader.owned for trader in traders)
    ranked = sorted((value for trader in traders for value in trader.values), reverse=True)
    if not owned:
        return max(ranked, default=0)
    return [*ranked, *[0] * (owned + 1)][owned]


def clear(traders: Sequence[Trader], price: int) -> dict[str, tuple[int, int]]:
    """Units bought and money paid by each site at one price. Sites that gain are served before those that are indifferent."""
    eager, ready = (
        _orders(traders, *sides)
        for sides in (
            (lambda bid: bid > price, lambda ask: ask < price),
            (lambda bid: bid >= price, lambda ask: ask <= price),
        )
    )
    units = min(max(sum(eager[0]), sum(eager[1])), sum(ready[0]), sum(ready[1]))
    bought, sold = (_served(units, eager[side], ready[side]) for side in range(2))
    net = [buys - sells for buys, sells in zip(bought, sold, strict=True)]
    return {trader.name: (units, units * price) for trader, units in zip(traders, net, strict=True)}


def _orders(
    traders: Sequence[Trader], buys: Callable[[int], bool], sells: Callable[[int], bool]
) -> tuple[list[int], list[int]]:
    return [sum(map(buys, t.bids)) for t in traders], [sum(map(sells, t.asks)) for t in traders]


def _served(units: int, eager: list[int], ready: list[int]) -> list[int]:
    served = []
    for wanted in eager:
        served.append(min(wanted, units))
        units -= served[-1]
    for place, (wanted, first) in enumerate(zip(ready, eager, strict=True)):
        more = min(wanted - first, units)
        served[place] += more
        units -= more
    return served


def values(most: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Marginal values, from the highest down, with many ties."""
    return st.lists(st.integers(0, HIGHEST), max_size=most).map(lambda each: tuple(sorted(each, reverse=True)))


@st.composite
def markets(draw: st.DrawFn) -> list[Trader]:
    """One to five sites with at most three units each."""
    names = NAMES[: draw(st.integers(1, len(NAMES)))]
    return [Trader(name, draw(st.integers(0, 3)), draw(values())) for name in names]
