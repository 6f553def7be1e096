"""Credits instead of money: who lends today borrows first tomorrow.

Karma (Vuppalapati, Fikioris, Agarwal, Cidon, Khandelwal and Tardos, Karma: Resource Allocation for Dynamic Demands, OSDI 2023,
arXiv 2305.17222). The steps are those of the authors' published implementation; the paper's text beyond its abstract was not
at hand. Theirs gives all users equal fair shares. Here sites have shares of their own, and riches are credits for each slice
of the fair share (an assumption; with equal shares it is their rule). Credits are whole numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm

from paceline.errors import UserError, check_count, shorten, shown, unknown


@dataclass(frozen=True)
class CreditState:
    """Accounts between two quanta.

    Args:
        fair_shares: slices that each site brings, at least one.
        alpha: part of its fair share that a site gets in every quantum when it asks, from 0 to 1.
        credits: of each site.
        granted: credits given without a loan so far, those of the start among them.
        retired: credits paid for slices that no site donated so far.
    """

    fair_shares: Mapping[str, int]
    alpha: Fraction
    credits: Mapping[str, int]
    granted: int
    retired: int = 0

    @property
    def guaranteed(self) -> dict[str, int]:
        """Slices that a site gets in every quantum when it asks: alpha of its fair share, in whole slices."""
        return {site: int(self.alpha * share) for site, share in self.fair_shares.items()}


@dataclass(frozen=True)
class Allocation:
    """Slices of one quantum.

    Args:
        slices: that each site uses, those borrowed among them.
        borrowed: slices beyond the guaranteed share, a credit each.
        lent: donated slices that others used, a credit each.
        shared: slices used that no site donated: those beyond all guaranteed shares.
        idle: slices that nobody uses.
    """

    slices: Mapping[str, int]
    borrowed: Mapping[str, int]
    lent: Mapping[str, int]
    shared: int
    idle: int


def open_accounts(
    fair_shares: Mapping[str, int], alpha: Fraction | int = Fraction(1, 2), credits_per_slice: int = 1_000_000
) -> CreditState:
    """The state before the first quantum.

    Args:
        fair_shares: slices of each site.
        alpha: part of the fair share that is guaranteed, from 0 to 1. With 1 no site ever has less than its own.
        credits_per_slice: credits at the start for each slice of the fair share. A site without credits borrows nothing, even
            where slices are idle: begin with many.

    Raises:
        UserError: no sites, a site without a slice, an alpha outside 0 to 1 or inexact, or a negative number of credits.
    """
    if not fair_shares:
        raise UserError("credits between no sites", "give at least one")
    shares = {site: check_count(share, f"slices of {shorten(site, 40)!r}") for site, share in fair_shares.items()}
    if isinstance(alpha, bool) or not isinstance(alpha, int | Fraction) or not 0 <= alpha <= 1:
        raise UserError(f"a guaranteed part of {shown(alpha)}", "give a Fraction from 0 to 1, such as Fraction(1, 2)")
    each = check_count(credits_per_slice, "credits a slice", 0)
    accounts = {site: share * each for site, share in shares.items()}
    return CreditState(shares, Fraction(alpha), accounts, sum(accounts.values()))


def quantum(state: CreditState, demands: Mapping[str, int]) -> tuple[CreditState, Allocation]:
    """Shares the slices of one quantum and settles the credits.

    1. Every site is given a credit for each of its slices that is not guaranteed.
    2. A site gets up to its guaranteed share and donates what it leaves. Slices that are not guaranteed are shared.
    3. The richest site that wants more borrows a slice for a credit, until nobody wants more, has a credit or is a slice left.
    4. Of donated slices the poorest donor's go first and earn it a credit; shared slices go last and earn nobody one.

    Credits are conserved: their sum is ``granted`` less ``retired``. Between equally rich sites the first of ``fair_shares``
    goes first.

    Args:
        demands: slices that each site asks for; 0 for a site that is not named.

    Raises:
        UserError: an unknown site, or a demand that is negative or no whole number.
    """
    for site in demands:
        if site not in state.fair_shares:
            raise unknown("site", site, state.fair_shares)
    asked = {site: check_count(demands.get(site, 0), f"slices asked by {shorten(site, 40)!r}", 0) for site in state.fair_shares}
    kept = state.guaranteed
    grants = {site: share - kept[site] for site, share in state.fair_shares.items()}
    credits = {site: state.credits[site] + grant for site, grant in grants.items()}
    spare = {site: max(0, kept[site] - asked[site]) for site in asked}
    wanted = {site: min(max(0, asked[site] - kept[site]), credits[site]) for site in asked}
    donated, shared = sum(spare.values()), sum(grants.values())
    moved = min(donated + shared, sum(wanted.values()))
    borrowed = _level(state.fair_shares, credits, wanted, moved, -1)
    lent = _level(state.fair_shares, credits, spare, min(moved, donated), 1)
    retired = max(0, moved - donated)
    after = {site: credits[site] + lent[site] - borrowed[site] for site in asked}
    slices = {site: min(asked[site], kept[site]) + borrowed[site] for site in asked}
    ended = replace(state, credits=after, granted=state.granted + shared, retired=state.retired + retired)
    return ended, Allocation(slices, borrowed, lent, retired, donated + shared - moved)


def _level(
    fair_shares: Mapping[str, int], credits: Mapping[str, int], most: Mapping[str, int], units: int, change: int
) -> dict[str, int]:
    """Hands out units one by one: to the richest site where a unit costs it a credit, to the poorest where it earns one."""
    whole = lcm(*fair_shares.values())
    weight = {site: whole // share for site, share in fair_shares.items()}  # riches in whole numbers
    given = dict.fromkeys(fair_shares, 0)
    queue = [(change * credits[site] * weight[site], i, site) for i, site in enumerate(fair_shares) if most[site]]
    heapq.heapify(queue)
    for _ in range(units):
        riches, i, site = queue[0]
        given[site] += 1
        if given[site] < most[site]:
            heapq.heapreplace(queue, (riches + weight[site], i, site))
        else:
            heapq.heappop(queue)
    return given


__all__ = ["Allocation", "CreditState", "open_accounts", "quantum"]
