"""VCG for identical units with decreasing marginal values: efficient and truthful, at the cost of the budget.

Every site pays what its presence costs the others (Clarke's pivot). Vickrey, Counterspeculation, auctions, and competitive
sealed tenders, Journal of Finance 16, 1961; Clarke 1971; Groves 1973.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.errors import UserError, check_count, shorten
from paceline.market.mechanisms.traders import Money, Trader, check_money, check_traders, efficient_holdings, most_value


@dataclass(frozen=True)
class VcgOutcome:
    """Who uses how much and who pays how much.

    Args:
        holdings: units that each site uses.
        payments: money that each site pays; negative where it receives.
    """

    holdings: Mapping[str, int]
    payments: Mapping[str, Money]

    @property
    def deficit(self) -> Money:
        """Money that an outsider has to add; negative where some is left."""
        return -sum(self.payments.values())


def vcg_exchange(traders: Sequence[Trader]) -> VcgOutcome:
    """Sites bring units and use them where they are worth most.

    Without a site its units are missing too: it pays the largest value of the others with their own units, less the value that
    they have now. It never has to pay more than it gains. The deficit is never negative: what all sites together add is at
    least the value that they create, since a price at which demand equals supply pays each at most what it adds.

    Raises:
        UserError: two sites of one name.
    """
    check_traders(traders)
    holdings = efficient_holdings(traders)
    total = most_value(traders)
    payments = {}
    for trader in traders:
        others = [other for other in traders if other is not trader]
        payments[trader.name] = most_value(others) - (total - trader.value(holdings[trader.name]))
    return VcgOutcome(holdings, payments)


def vcg_sale(buyers: Sequence[Trader], units: int, reserve: Money = 0) -> VcgOutcome:
    """A seller outside the group, such as a public cloud, sells units to the sites. The deficit is minus its revenue.

    Args:
        buyers: sites that own none.
        units: that the seller has.
        reserve: what a unit is worth to the seller. Nobody gets one for less.

    Raises:
        UserError: two sites of one name, a site that owns units, a negative number of units or an inexact reserve.
    """
    check_traders(buyers)
    owner = next((buyer for buyer in buyers if buyer.owned), None)
    if owner is not None:
        raise UserError(
            f"{shorten(owner.name, 40)!r} owns units in a sale from outside",
            "use an exchange for sites with units of their own",
        )
    units = check_count(units, "units for sale", 0)
    reserve = check_money(reserve, "a reserve")
    seller = Trader("\0seller", units, (reserve,) * units)
    holdings = efficient_holdings([seller, *buyers])
    total = most_value([seller, *buyers])
    payments = {}
    for buyer in buyers:
        others = [seller, *(other for other in buyers if other is not buyer)]
        payments[buyer.name] = most_value(others) - (total - buyer.value(holdings[buyer.name]))
    del holdings[seller.name]
    return VcgOutcome(holdings, payments)


__all__ = ["VcgOutcome", "vcg_exchange", "vcg_sale"]
