"""What each rule keeps and what it gives up: efficiency, individual rationality, budget balance, truthfulness.

The tests hold every entry against the rule itself: drawn false reports where one claims truthfulness, a gainful lie where it
does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from paceline.errors import known_name

WHY_NOT_ALL = (
    "No rule for trade between a buyer and a seller keeps efficiency, individual rationality, budget balance and truthfulness "
    "all at once (Myerson and Satterthwaite, Efficient mechanisms for bilateral trading, 1983, recalled)."
)

MCAFEE = "McAfee, A dominant strategy double auction, Journal of Economic Theory 56, 1992"
MUDA = "Segal-Halevi, Hassidim and Aumann, MUDA: a truthful multi-unit double-auction mechanism, AAAI 2018"
CLARKE = "Vickrey 1961, Clarke 1971, Groves 1973"
KARMA = "Vuppalapati et al., Karma: resource allocation for dynamic demands, OSDI 2023"
OWEN = "Owen, On the core of linear production games, Mathematical Programming 9, 1975 (recalled)"
SHAPLEY = "Shapley, A value for n-person games, 1953"
LEAST_CORE = (
    "Maschler, Peleg and Shapley, Geometric properties of the kernel, nucleolus, and related solution concepts, 1979 (recalled)"
)
DEFINITION = "by construction"
TESTS = "a counterexample in the tests"


@dataclass(frozen=True)
class Efficiency:
    """Whether the total value is the largest possible, by what was reported: ``yes`` or ``partly``."""

    kept: Literal["yes", "partly"]
    how: str
    source: str


@dataclass(frozen=True)
class IndividualRationality:
    """Whether no honest site is worse off than alone: ``yes``, or ``partly`` where only under a condition."""

    kept: Literal["yes", "partly"]
    how: str
    source: str


@dataclass(frozen=True)
class BudgetBalance:
    """``exact``: payments add up to 0. ``weak``: some money may be left over. ``no``: money may be missing."""

    kept: Literal["exact", "weak", "no"]
    how: str
    source: str


@dataclass(frozen=True)
class Truthfulness:
    """``dominant strategy``: no false report ever helps. ``online``: none helps without knowledge of the future. ``none``."""

    kept: Literal["dominant strategy", "online", "none"]
    how: str
    source: str


Property = Efficiency | IndividualRationality | BudgetBalance | Truthfulness


@dataclass(frozen=True)
class Mechanism:
    """A rule of sharing, with what it keeps. Each property has one sentence and its source."""

    name: str
    title: str
    efficiency: Efficiency
    individual_rationality: IndividualRationality
    budget_balance: BudgetBalance
    truthfulness: Truthfulness

    @property
    def keeps(self) -> tuple[str, ...]:
        """Names of the properties that it keeps without a condition. Weak budget balance is kept: no money is missing."""
        return tuple(name for name, kept in self._all if kept in ("yes", "exact", "weak", "dominant strategy"))

    @property
    def gives_up(self) -> tuple[str, ...]:
        """Names of the properties that it gives up, wholly or in part."""
        return tuple(name for name, _ in self._all if name not in self.keeps)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """A property each: its name, whether it is kept, how, and the source."""
        values: tuple[Property, ...] = (self.efficiency, self.individual_rationality, self.budget_balance, self.truthfulness)
        return [(name, kept, value.how, value.source) for (name, kept), value in zip(self._all, values, strict=True)]

    @property
    def _all(self) -> tuple[tuple[str, str], ...]:
        return (
            ("efficiency", self.efficiency.kept),
            ("individual rationality", self.individual_rationality.kept),
            ("budget balance", self.budget_balance.kept),
            ("truthfulness", self.truthfulness.kept),
        )


_NOBODY_AT_A_LOSS = IndividualRationality("yes", "Nobody buys above its value or sells below it.", DEFINITION)
_BUYERS_PAY_SELLERS = BudgetBalance("exact", "Sellers receive what buyers pay.", DEFINITION)
_ONE_TRADE = Efficiency("partly", "At most one unit is not traded: the one that gains least.", MCAFEE)
_PRICE_GAP = BudgetBalance("weak", "The auctioneer keeps the difference of the two prices.", MCAFEE)
_POOLED_WORK = Efficiency("yes", "Payments do not change who uses what: the pooled schedule stays.", DEFINITION)
_REPORTED_TRACES = Truthfulness("none", "Shares follow reported traces: a site that claims to do well alone pays less.", TESTS)

_ENTRIES = (
    Mechanism(
        "auction",
        "A double auction of runs of whole jobs, at one price half way between bids and asks",
        Efficiency("partly", "The highest bid is served first; jobs wait for the next auction.", DEFINITION),
        IndividualRationality("partly", "Nobody pays above its bid or gets below its ask; a site may expect wrongly.", TESTS),
        _BUYERS_PAY_SELLERS,
        Truthfulness("none", "The lowest bid that wins and the highest ask set the price.", TESTS),
    ),
    Mechanism(
        "mcafee",
        "McAfee's double auction, each unit of a site a bid or an ask",
        _ONE_TRADE,
        _NOBODY_AT_A_LOSS,
        _PRICE_GAP,
        Truthfulness("none", "A site with several units moves the price of some by its report for the others.", TESTS),
    ),
    Mechanism(
        "unit-auction",
        "McAfee's double auction, one unit a site",
        _ONE_TRADE,
        _NOBODY_AT_A_LOSS,
        _PRICE_GAP,
        Truthfulness(
            "dominant strategy", "No site sets the price at which it trades, while it bids once and under one name.", MCAFEE
        ),
    ),
    Mechanism(
        "split-auction",
        "Two halves of the sites, each trading at a price of the other half",
        Efficiency("partly", "Trades between the halves are lost: much of the gain with few sites, little with many.", MUDA),
        _NOBODY_AT_A_LOSS,
        _BUYERS_PAY_SELLERS,
        Truthfulness(
            "dominant strategy", "No site moves the price of its own half, nor the order in which it is served.", MUDA
        ),
    ),
    Mechanism(
        "vcg",
        "Exchange of units that sites own, with Clarke's payments",
        Efficiency("yes", "Units go where they are worth most.", CLARKE),
        IndividualRationality("yes", "A site keeps all that its presence adds to the total value.", CLARKE),
        BudgetBalance("no", "Sellers receive more than buyers pay: somebody outside covers the deficit.", CLARKE),
        Truthfulness(
            "dominant strategy", "A site's payoff is the total value less what the others would have without it.", CLARKE
        ),
    ),
    Mechanism(
        "vcg-sale",
        "Sale of units from outside the group, with Clarke's payments",
        Efficiency("yes", "Units go where they are worth most, to the seller among the places.", CLARKE),
        IndividualRationality("yes", "A site pays the value that others lose, which is at most its own.", CLARKE),
        BudgetBalance("weak", "The seller receives at least its reserve for each unit sold.", CLARKE),
        Truthfulness(
            "dominant strategy", "A buyer's report does not move its price; the seller's reserve has to be known.", CLARKE
        ),
    ),
    Mechanism(
        "credits",
        "No money: own jobs come first at home, and the site that has lent most borrows first",
        Efficiency("partly", "Nothing idles that a job may use, but no device goes by what waiting costs.", DEFINITION),
        IndividualRationality(
            "partly", "With a notice a site has its devices back; without one it waits for its guests.", TESTS
        ),
        BudgetBalance("exact", "Credits are device-seconds lent less borrowed, so they add up to 0.", DEFINITION),
        Truthfulness("none", "A site may hold back devices that its own jobs will want soon.", TESTS),
    ),
    Mechanism(
        "karma",
        "Karma: a credit for a slice lent, and the richest borrow first",
        Efficiency("partly", "No slice idles while a site with credits wants one, but no slice goes by its value.", KARMA),
        IndividualRationality(
            "partly", "Alpha of its own slices is sure in each quantum: all of them only with alpha 1.", KARMA
        ),
        BudgetBalance(
            "exact", "No money moves; credits add up to those granted less those paid for shared slices.", DEFINITION
        ),
        Truthfulness("online", "Asking for more never helps; asking for less may help a site that knows later demands.", KARMA),
    ),
    Mechanism(
        "posted-prices",
        "A price for each resource and period, posted before anybody reports",
        Efficiency("partly", "The right price loses nothing; a wrong one leaves gainful trades undone.", TESTS),
        _NOBODY_AT_A_LOSS,
        _BUYERS_PAY_SELLERS,
        Truthfulness("dominant strategy", "Neither price nor order of service depends on a report.", DEFINITION),
    ),
    Mechanism(
        "prices",
        "A price for each resource and period, from the linear program of all reports",
        Efficiency("yes", "At the dual price every site wants its part of the largest total value.", OWEN),
        _NOBODY_AT_A_LOSS,
        _BUYERS_PAY_SELLERS,
        Truthfulness("none", "The price follows the reports: a buyer that hides a want lowers it.", TESTS),
    ),
    Mechanism(
        "shapley",
        "Each site gets its mean contribution over all orders of joining",
        _POOLED_WORK,
        IndividualRationality("partly", "Kept where no site lowers the saving of a group that it joins.", SHAPLEY),
        BudgetBalance("exact", "The shares add up to the saving of all.", SHAPLEY),
        _REPORTED_TRACES,
    ),
    Mechanism(
        "least-core",
        "Shares under which the group that has most reason to leave has least",
        _POOLED_WORK,
        IndividualRationality("partly", "Kept where the core is not empty.", LEAST_CORE),
        BudgetBalance("exact", "The shares add up to the saving of all.", LEAST_CORE),
        _REPORTED_TRACES,
    ),
)

MECHANISMS: Mapping[str, Mechanism] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""Every rule by its name."""


def mechanism_named(name: str) -> Mechanism:
    """The description of a rule.

    Raises:
        UserError: no such rule, with the nearest names.
    """
    return MECHANISMS[known_name("rule", name, MECHANISMS, few=len(MECHANISMS))]


__all__ = [
    "MECHANISMS",
    "WHY_NOT_ALL",
    "BudgetBalance",
    "Efficiency",
    "IndividualRationality",
    "Mechanism",
    "Truthfulness",
    "mechanism_named",
]
