"""Gain of a site that joins a federation: its range, the devices it must lend, a fair price, and its sensitivities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from paceline.array_types import Array, Bools
from paceline.errors import unknown
from paceline.market.federation.costs import mean_wait_s
from paceline.market.federation.federation_state import FederationDemand
from paceline.market.federation.flows import flows_of, lending
from paceline.market.game.savings import Progress, Savings
from paceline.market.game.settlement import RULES, settle

DRAWS = 40
WEEK_S = 7 * 86400.0
LOW, HIGH = 10, 90
"""Percentiles of the range: 80 % of the draws lie in it."""
MOST_PARTNERS = 3
"""Number of other sites whose absence is tried: the ones with the most device-hours lent to it or borrowed from it."""
STEPS = 8
"""Number of limits of lending above 0 that are tried: eighths of the devices that the site lends."""


@dataclass(frozen=True, slots=True)
class Dependence:
    """The gain under another condition, in the federation's currency."""

    what: str
    gain: float


@dataclass(frozen=True)
class Gain:
    """Gain of a site over the trace, in the federation's currency.

    Attributes:
        alone, together: its costs before payments. ``received``: from the others under the rule; negative if it pays.
        wait_alone_s, wait_together_s: mean time from arrival to first start.
        low, high: 80 % range of the gain over draws of the trace's weeks; ``paid``: the range includes payments. False: the
            rule needs the saving of every group, so the range covers the site's saving alone.
        lent_hours, borrowed_hours: device-hours. ``most_lent``: devices at a time.
        must_lend: the fewest devices at a time, in ``STEPS`` steps, at which the other sites together lose nothing by its
            joining, before payments; None: even all its devices are too few.
        ask_least: price of a device-hour above which lending alone pays; None: it lends nothing then. ``pay_most``: price below
            which borrowing alone pays; None: it borrows nothing.
        depends: the gain under other conditions, the largest change first; before payments if not ``paid``.
    """

    site: str
    rule: str
    currency: str
    alone: float
    together: float
    received: float
    paid: bool
    low: float
    high: float
    draws: int
    wait_alone_s: float
    wait_together_s: float
    lent_hours: float
    borrowed_hours: float
    most_lent: int
    must_lend: int | None
    ask_least: float | None
    pay_most: float | None
    depends: tuple[Dependence, ...]

    @property
    def gain(self) -> float:
        """Costs alone less costs together, plus payments received."""
        return self.alone - self.together + self.received


def gain_of(
    savings: Savings, site: str, rule: str, draws: int = DRAWS, seed: int = 0, progress: Progress | None = None
) -> Gain:
    """Evaluate the gain of one site among all others under a rule.

    The range is a bootstrap: weeks of the trace are drawn with replacement, the same weeks for all sites, so coinciding bursts
    stay together. A trace of less than two weeks is drawn in sevenths.

    Args:
        savings: as ``savings_under`` makes it for the rule.

    Raises:
        UserError: no site of that name; as ``settle``.
    """
    names = savings.federation.names
    if site not in names:
        raise unknown("site", site, names)
    number = names.index(site)
    paid = not RULES[rule].whole_game

    def gain(changed: Savings) -> float:
        if paid:
            return float(settle(changed, rule).shares[number])
        return _saving(changed, number)

    settlement = settle(savings, rule)
    conditions = list(_conditions(savings, number))
    steps = draws + len(conditions)
    rng, gains = np.random.default_rng(seed), []
    for draw in range(draws):
        gains.append(gain(savings.changed(demand=drawn(savings.demand, rng))))
        if progress:
            progress(draw + 1, steps)
    depends = []
    for done, (what, changed) in enumerate(conditions, start=draws + 1):
        depends.append(Dependence(what, gain(changed)))
        if progress:
            progress(done, steps)
    cost_alone = savings.total(1 << number)
    lent, borrowed, most = lending(savings.demand, settlement.outcome, number)
    ask_least, pay_most = _break_even(savings, number)
    found = Gain(
        site=site,
        rule=rule,
        currency=savings.federation.currency,
        alone=cost_alone,
        together=cost_alone - float(settlement.saved[number]),
        received=float(settlement.received[number]),
        paid=paid,
        low=float(np.percentile(gains, LOW)),
        high=float(np.percentile(gains, HIGH)),
        draws=draws,
        wait_alone_s=mean_wait_s(savings.demand, savings.outcome(1 << number), number),
        wait_together_s=mean_wait_s(savings.demand, settlement.outcome, number),
        lent_hours=lent,
        borrowed_hours=borrowed,
        most_lent=most,
        must_lend=_must_lend(savings, number),
        ask_least=ask_least,
        pay_most=pay_most,
        depends=tuple(depends),
    )
    usual = found.gain if paid else cost_alone - found.together
    return replace(found, depends=tuple(sorted(depends, key=lambda each: -abs(each.gain - usual))))


def _limited(savings: Savings, site: int, **limits: int) -> Savings:
    """Change the limits of one site: ``lends``, ``borrows``."""
    rules = savings.rules
    for name, limit in limits.items():
        changed = getattr(rules, name).copy()
        changed[site] = limit
        rules = replace(rules, **{name: changed})
    return savings.changed(rules=rules)


def _must_lend(savings: Savings, site: int) -> int | None:
    others = [number for number in range(len(savings.federation.sites)) if number != site]
    if not others:
        return 0
    without = savings.total(savings.everyone & ~(1 << site))
    devices = savings.federation.sites[site].fleet.devices
    stated = int(min(savings.rules.lends[site], devices))
    for limit in sorted({stated * step // STEPS for step in range(STEPS + 1)}):
        costs = _limited(savings, site, lends=limit).costs(savings.everyone).total
        if float(costs[others].sum()) <= without + 1e-9 * abs(without):
            return limit
    return None


def _break_even(savings: Savings, site: int) -> tuple[float | None, float | None]:
    """Return the cost of a device-hour for a site that only lends, and its saving for one that only borrows."""
    found: list[float | None] = []
    for limits, lends in (({"borrows": 0}, True), ({"lends": 0}, False)):
        changed = _limited(savings, site, **limits)
        lent, borrowed, _ = lending(changed.demand, changed.outcome(changed.everyone), site)
        hours = lent if lends else borrowed
        saving = _saving(changed, site)
        found.append((-saving if lends else saving) / hours if hours else None)
    return found[0], found[1]


def drawn(demand: FederationDemand, rng: np.random.Generator) -> FederationDemand:
    """Return the jobs of weeks drawn with replacement, one after the other; a short trace is drawn in sevenths."""
    span = float(demand.arrival_s.max(initial=0.0)) + 1.0
    block = WEEK_S if span >= 2 * WEEK_S else span / 7
    blocks = max(round(span / block), 1)
    number = np.minimum((demand.arrival_s / block).astype(np.int64), blocks - 1)
    places, moments = [], []
    for position, chosen in enumerate(rng.integers(0, blocks, blocks).tolist()):
        mine = np.flatnonzero(number == chosen)
        places.append(mine)
        moments.append(demand.arrival_s[mine] + (position - chosen) * block)
    return _of_jobs(demand, np.concatenate(places), np.concatenate(moments))


def _of_jobs(demand: FederationDemand, places: Array, moments: Array) -> FederationDemand:
    order = np.argsort(moments, kind="stable")
    kept = places[order]
    return replace(
        demand,
        arrival_s=moments[order],
        duration_s=demand.duration_s[kept],
        devices=demand.devices[kept],
        site=demand.site[kept],
        kind=demand.kind[kept],
        patience_s=demand.patience_s[kept],
    )


def _saving(savings: Savings, site: int) -> float:
    """Return the gain before payments."""
    return savings.total(1 << site) - float(savings.costs(savings.everyone).total[site])


def _conditions(savings: Savings, site: int) -> Iterator[tuple[str, Savings]]:
    """Yield other conditions in words, and the federation under each."""
    demand = savings.demand
    mine = demand.site == site

    def longer(jobs: Bools, factor: float) -> Savings:
        durations = np.where(jobs, demand.duration_s * factor, demand.duration_s)
        return savings.changed(demand=replace(demand, duration_s=durations))

    yield "its own jobs take 20 % longer", longer(mine, 1.2)
    yield "its own jobs take 20 % less", longer(mine, 0.8)
    if len(savings.federation.sites) == 1:
        return
    yield "the others' jobs take 20 % longer", longer(~mine, 1.2)
    yield "the others' jobs take 20 % less", longer(~mine, 0.8)
    yield "it lends nothing", _limited(savings, site, lends=0)
    hours = flows_of(demand, savings.outcome(savings.everyone), len(savings.federation.sites)).hours
    traded = hours[site] + hours[:, site]
    traded[site] = -1.0  # itself
    for other in np.argsort(-traded, kind="stable")[:MOST_PARTNERS].tolist():
        if other != site:
            yield f"without {savings.federation.names[other]}", _limited(savings, other, lends=0, borrows=0)
