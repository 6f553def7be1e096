"""Properties that each rule of settlement keeps in theory.

The four properties are efficiency, individual rationality, budget balance and truthfulness. The tests check every claim: drawn
markets where a rule keeps a property, a counterexample where it does not.
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

OWEN = "Owen, On the core of linear production games, Mathematical Programming 9, 1975 (recalled)"
SHAPLEY = "Shapley, A value for n-person games, 1953"
LEAST_CORE = (
    "Maschler, Peleg and Shapley, Geometric properties of the kernel, nucleolus, and related solution concepts, 1979 (recalled)"
)
DEFINITION = "by construction"
TESTS = "a counterexample in the tests"


@dataclass(frozen=True)
class RuleProperty:
    """A claim about one property.

    Attributes:
        kept: ``yes`` or ``partly`` (under a condition); ``exact`` if payments add up to 0; ``none`` if a false report can help.
        how: the reason, one sentence.
        source: source of the claim.
    """

    kept: Literal["yes", "partly", "exact", "none"]
    how: str
    source: str


@dataclass(frozen=True)
class RuleProperties:
    """The properties of a rule of settlement.

    Attributes:
        efficiency: the total value is the largest possible, by the reports.
        individual_rationality: no honest site is worse off than alone.
        budget_balance: payments add up to 0.
        truthfulness: no false report helps.
    """

    name: str
    efficiency: RuleProperty
    individual_rationality: RuleProperty
    budget_balance: RuleProperty
    truthfulness: RuleProperty

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return one row per property: its name, whether it is kept, the reason and the source."""
        return [(name, claim.kept, claim.how, claim.source) for name, claim in self._claims.items()]

    @property
    def given_up(self) -> tuple[str, ...]:
        """Names of the properties that the rule does not keep without a condition."""
        return tuple(name for name, claim in self._claims.items() if claim.kept not in ("yes", "exact"))

    @property
    def _claims(self) -> dict[str, RuleProperty]:
        return {
            "efficiency": self.efficiency,
            "individual rationality": self.individual_rationality,
            "budget balance": self.budget_balance,
            "truthfulness": self.truthfulness,
        }


_BUYERS_PAY_SELLERS = RuleProperty("exact", "Sellers receive what buyers pay.", DEFINITION)
_POOLED_WORK = RuleProperty("yes", "Payments do not change who uses what: the pooled schedule stays.", DEFINITION)
_REPORTED_TRACES = RuleProperty("none", "Shares follow reported traces: a site that claims to do well alone pays less.", TESTS)

_ENTRIES = (
    RuleProperties(
        "auction",
        RuleProperty("partly", "The highest bid is served first; jobs wait for the next auction.", DEFINITION),
        RuleProperty("partly", "Nobody pays above its bid or gets below its ask; a site may expect wrongly.", TESTS),
        _BUYERS_PAY_SELLERS,
        RuleProperty("none", "The lowest bid that wins and the highest ask set the price.", TESTS),
    ),
    RuleProperties(
        "credits",
        RuleProperty("partly", "Nothing idles that a job may use, but no device goes by what waiting costs.", DEFINITION),
        RuleProperty("partly", "With a notice a site has its devices back; without one it waits for its guests.", TESTS),
        RuleProperty("exact", "Credits are device-seconds lent less borrowed, so they add up to 0.", DEFINITION),
        RuleProperty("none", "A site may hold back devices that its own jobs will want soon.", TESTS),
    ),
    RuleProperties(
        "prices",
        RuleProperty("yes", "At the dual price every site wants its part of the largest total value.", OWEN),
        RuleProperty("yes", "Nobody buys above its value or sells below it.", DEFINITION),
        _BUYERS_PAY_SELLERS,
        RuleProperty("none", "The price follows the reports: a buyer that hides a want lowers it.", TESTS),
    ),
    RuleProperties(
        "shapley",
        _POOLED_WORK,
        RuleProperty("partly", "Kept where no site lowers the saving of a group that it joins.", SHAPLEY),
        RuleProperty("exact", "The shares add up to the saving of all.", SHAPLEY),
        _REPORTED_TRACES,
    ),
    RuleProperties(
        "least-core",
        _POOLED_WORK,
        RuleProperty("partly", "Kept where the core is not empty.", LEAST_CORE),
        RuleProperty("exact", "The shares add up to the saving of all.", LEAST_CORE),
        _REPORTED_TRACES,
    ),
)

RULE_PROPERTIES: Mapping[str, RuleProperties] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""Every rule by its name."""


def properties_of(rule: str) -> RuleProperties:
    """Return the properties of a rule. Raises UserError for an unknown rule, with the nearest names."""
    return RULE_PROPERTIES[known_name("rule", rule, RULE_PROPERTIES)]
