"""What a site gains by joining a federation: with a range, what it lends for it, and what it depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from paceline.array_types import Array, Bools
from paceline.errors import unknown
from paceline.market.federation_state import Demand, Outcome, lenders
from paceline.market.savings import Progress, Savings

DRAWS = 40
WEEK_S = 7 * 86400.0
LOW, HIGH = 10, 90
"""Percentiles of the range: eight draws of ten lie in it."""
MOST_PARTNERS = 3
"""Other sites whose absence is tried: those on which most depends."""


@dataclass(frozen=True, slots=True)
class Dependence:
    """The gain under another condition, in the federation's currency."""

    what: str
    gain: float


@dataclass(frozen=True)
class Gain:
    """What a site gains, in the federation's currency, over the trace.

    Attributes:
        alone, together: its costs. ``wait_alone_s``, ``wait_together_s``: mean time from arrival to first start.
        low, high: 80 % range of the gain over draws of the trace's weeks.
        lent_hours, borrowed_hours: device-hours. ``most_lent``: devices at a time.
        depends: the gain under other conditions, the largest change first.
    """

    site: str
    currency: str
    alone: float
    together: float
    low: float
    high: float
    draws: int
    wait_alone_s: float
    wait_together_s: float
    lent_hours: float
    borrowed_hours: float
    most_lent: int
    depends: tuple[Dependence, ...]

    @property
    def gain(self) -> float:
        """Costs alone less costs together."""
        return self.alone - self.together


def gain_of(savings: Savings, site: str, draws: int = DRAWS, seed: int = 0, progress: Progress | None = None) -> Gain:
    """What one site gains beside all others, before anybody pays anybody.

    The range is a bootstrap: the trace's weeks are drawn with replacement, the same weeks for all sites, so that bursts which
    coincide still do. A trace of less than two weeks is drawn in sevenths.

    Raises:
        UserError: no site of that name.
    """
    names = savings.federation.names
    if site not in names:
        raise unknown("site", site, names)
    number = names.index(site)
    conditions = list(_conditions(savings, number))
    steps = draws + len(conditions)
    rng, gains = np.random.default_rng(seed), []
    for draw in range(draws):
        gains.append(_gain(savings.changed(demand=drawn(savings.demand, rng)), number))
        if progress:
            progress(draw + 1, steps)
    together, alone = savings.outcome(savings.everyone), savings.outcome(1 << number)
    cost_alone = float(savings.costs(1 << number).total[number])
    cost_together = float(savings.costs(savings.everyone).total[number])
    depends = []
    for done, (what, changed) in enumerate(conditions, start=draws + 1):
        depends.append(Dependence(what, changed()))
        if progress:
            progress(done, steps)
    lent, borrowed, most = lending(savings.demand, together, number)
    return Gain(
        site=site,
        currency=savings.federation.currency,
        alone=cost_alone,
        together=cost_together,
        low=float(np.percentile(gains, LOW)),
        high=float(np.percentile(gains, HIGH)),
        draws=draws,
        wait_alone_s=_wait(savings.demand, alone, number),
        wait_together_s=_wait(savings.demand, together, number),
        lent_hours=lent,
        borrowed_hours=borrowed,
        most_lent=most,
        depends=tuple(sorted(depends, key=lambda each: -abs(each.gain - (cost_alone - cost_together)))),
    )


def drawn(demand: Demand, rng: np.random.Generator) -> Demand:
    """The jobs of weeks that are drawn with replacement, one after the other; a short trace is drawn in sevenths."""
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


def _of_jobs(demand: Demand, places: Array, moments: Array) -> Demand:
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


def lending(demand: Demand, outcome: Outcome, site: int) -> tuple[float, float, int]:
    """Device-hours that a site lends and borrows, and the most devices that it lends at a time."""
    lender, home, devices = lenders(demand, outcome), demand.site[outcome.run_job], demand.devices[outcome.run_job]
    hours = (outcome.run_end_s - outcome.run_start_s) * devices / 3600
    lent = lender == site
    moments = np.concatenate([outcome.run_start_s[lent], outcome.run_end_s[lent]])
    changes = np.concatenate([devices[lent], -devices[lent]])
    order = np.lexsort((changes, moments))  # devices come back before they go out again
    most = int(changes[order].cumsum().max(initial=0))
    return float(hours[lent].sum()), float(hours[(lender >= 0) & (home == site)].sum()), most


def _gain(savings: Savings, site: int, members: int | None = None) -> float:
    together = savings.everyone if members is None else members
    return float(savings.costs(1 << site).total[site] - savings.costs(together).total[site])


def _wait(demand: Demand, outcome: Outcome, site: int) -> float:
    mine = demand.site == site
    return float((outcome.first_start_s - demand.arrival_s)[mine].mean())


def _conditions(savings: Savings, site: int) -> Iterator[tuple[str, Callable[[], float]]]:
    """Other conditions in words, and what finds the gain under each."""
    demand, rules = savings.demand, savings.rules
    mine = demand.site == site

    def longer(jobs: Bools, factor: float) -> Callable[[], float]:
        durations = np.where(jobs, demand.duration_s * factor, demand.duration_s)
        return lambda: _gain(savings.changed(demand=replace(demand, duration_s=durations)), site)

    yield "its own jobs take 20 % longer", longer(mine, 1.2)
    yield "its own jobs take 20 % less", longer(mine, 0.8)
    if len(savings.federation.sites) > 1:
        yield "the others' jobs take 20 % longer", longer(~mine, 1.2)
        yield "the others' jobs take 20 % less", longer(~mine, 0.8)
    lends = rules.lends.copy()
    lends[site] = 0
    yield "it lends nothing", lambda: _gain(savings.changed(rules=replace(rules, lends=lends)), site)
    others = [number for number in range(len(savings.federation.sites)) if number != site]
    without = savings.outcome(savings.everyone & ~(1 << site))
    hours = {other: lending(demand, without, other)[0] for other in others}
    for other in sorted(others, key=lambda number: -hours[number])[:MOST_PARTNERS]:
        members = savings.everyone & ~(1 << other)
        yield f"without {savings.federation.names[other]}", lambda members=members: _gain(savings, site, members)  # type: ignore[misc]


__all__ = ["DRAWS", "Dependence", "Gain", "drawn", "gain_of", "lending"]
