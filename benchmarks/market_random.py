"""How often is a site worse off under each rule, and does a false report help it? On random federations.

    python benchmarks/market_random.py --out RESULTS/market_random.csv

RESULTS is benchmarks/results. Each federation has two to four sites of 16 devices with their own load, job lengths, price of
waiting, energy and notice; half of the federations pay for bytes between sites. All of it is drawn, none is real. One site of
each federation then reports falsely, and is judged by its true costs. A row for each rule and report.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rows import append

from paceline.market.federation.costs import costs_of
from paceline.market.federation.site import Federation, Site
from paceline.market.game.savings import Savings, SharingRules
from paceline.market.game.settlement import RULES, savings_under, settle
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job

COLUMNS = (
    *("rule", "report", "federations", "sites", "kept_median", "kept_low", "worse_off", "worse_off_federations", "worst_loss"),
    *("helped", "helped_mean", "helped_most"),
)
REPORTS: Mapping[str, Callable[[Site], Site]] = {
    "true": lambda site: site,
    "waiting costs half": lambda site: replace(site, waiting_price=site.waiting_price / 2),
    "waiting costs twice": lambda site: replace(site, waiting_price=site.waiting_price * 2),
    "lends half": lambda site: replace(site, lends=site.fleet.devices // 2),
    "lends nothing": lambda site: replace(site, lends=0),
}
WATTS = 300.0


def federation(seed: int) -> Federation:
    """Drawn."""
    rng = np.random.default_rng(seed)
    sites = []
    fleet = Fleet.named("2x8xV100")
    fleet = replace(fleet, groups=tuple(replace(group, watts=WATTS) for group in fleet.groups))
    for name in "ABCD"[: int(rng.integers(2, 5))]:
        count, load, mean_s = int(rng.integers(20, 150)), rng.uniform(0.3, 1.0), rng.uniform(1, 6) * 3600
        devices = rng.choice([1, 2, 4, 8], count, p=[0.4, 0.2, 0.2, 0.2])
        long = rng.exponential(mean_s, count) + 60
        moments = np.sort(rng.uniform(0, (devices * long).sum() / fleet.devices / load, count))
        jobs = [
            Job(name=f"{name}{n}", arrival_s=float(at), duration_s=float(seconds), devices=int(held))
            for n, (at, seconds, held) in enumerate(zip(moments, long, devices, strict=True))
        ]
        sites.append(
            Site(
                name=name,
                fleet=fleet,
                jobs=tuple(jobs),
                notice_s=float(rng.choice([0.0, 600.0, 3600.0, math.inf])),
                waiting_price=float(rng.choice([0.5, 1.0, 4.0])),
                energy_price=float(rng.choice([0.0, 0.1, 0.3])),
            )
        )
    return Federation(
        sites=tuple(sites),
        currency="$",
        wan_bytes_per_s=1.25e9,
        wan_price=float(rng.choice([0.0, 0.02])),
        data_bytes={"": 20e9},
    )


def gains(true: Federation, told: Federation, rule: str) -> tuple[np.ndarray[Any, np.dtype[np.float64]], float]:
    """What each site gains by its true costs where the rule knows what was told, and what all save."""
    savings = savings_under(told, rule)
    settled = settle(savings, rule)
    costs = costs_of(true, savings.demand, settled.outcome).total
    honest = savings_under(true, rule)
    saved = np.array([honest.total(1 << number) for number in range(len(true.sites))]) - costs
    return saved + settled.received, float(saved.sum())


def study(count: int) -> Iterator[dict[str, Any]]:
    """A row for each rule and report."""
    federations = [federation(seed) for seed in range(count)]
    pooled = [Savings.of(each, SharingRules(one_pool=True)) for each in federations]
    bounds = [max(each.worth(each.everyone), 1e-9) for each in pooled]
    for rule in RULES:
        honest = [gains(each, each, rule)[0] for each in federations]
        for report, change in REPORTS.items():
            kept, helped, losses, worse, worse_federations = [], [], [0.0], 0, 0
            for number, (true, bound) in enumerate(zip(federations, bounds, strict=True)):
                liar = number % len(true.sites)
                told = tuple(change(site) if n == liar else site for n, site in enumerate(true.sites))
                shares, saved = gains(true, replace(true, sites=told), rule)
                kept.append(saved / bound)
                helped.append((shares[liar] - honest[number][liar]) / bound)
                losers = np.flatnonzero(shares < -1e-9 * bound)
                worse += len(losers)
                worse_federations += bool(len(losers))
                losses.append(float(shares.min()) / bound)
            yield {
                "rule": rule,
                "report": report,
                "federations": count,
                "sites": sum(len(each.sites) for each in federations),
                "kept_median": round(float(np.median(kept)), 4),
                "kept_low": round(float(np.percentile(kept, 10)), 4),
                "worse_off": worse,
                "worse_off_federations": worse_federations,
                "worst_loss": round(max(-min(losses), 0.0), 4),
                "helped": sum(change > 1e-6 for change in helped),
                "helped_mean": round(float(np.mean(helped)), 4),
                "helped_most": round(float(np.max(helped)), 4),
            }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for row in study(options.federations):
        append(options.out, COLUMNS, row)
        print("  ".join(f"{name} {row[name]}" for name in COLUMNS), flush=True)


if __name__ == "__main__":
    main()
