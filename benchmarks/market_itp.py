"""Sharing on ten real clusters: what pooling saves, what the divisions are worth, and what each rule keeps of the saving.

    python benchmarks/market_itp.py pooling --trace ITP.csv --out RESULTS/market_itp_pooling.csv
    python benchmarks/market_itp.py game --trace ITP.csv --out RESULTS/market_itp_game.csv
    python benchmarks/market_itp.py rules --trace ITP.csv --out RESULTS/market_itp_rules.csv --picture RESULTS/market_itp.svg

RESULTS is benchmarks/results. ITP.csv is ElasticFlow's trace of ITP (69,351 jobs of ten clusters over the same 60 days):
submission, duration and GPUs are real, the models are those that its authors drew. Capacities are assumed: each cluster has
whole nodes of 8 GPUs for its stated mean load, and at least its largest job. "Computed" columns are of another simulator;
``simulated_s`` is processor time.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rows import append, read

from paceline.market.federation.costs import costs_of
from paceline.market.federation.federation_answer import few_groups
from paceline.market.federation.site import Federation
from paceline.market.federation.sites_file import read_sites
from paceline.market.game.core import blocking, nucleolus
from paceline.market.game.rule_properties import properties_of
from paceline.market.game.savings import Savings, SharingRules
from paceline.market.game.settlement import RULES, savings_under, settle
from paceline.market.game.shapley import shapley
from paceline.market.game.stability import judge

COMPUTED = {0.60: (1968, 23_697, 48), 0.75: (1600, 52_089, 277), 0.90: (1344, 114_818, 2_625)}
"""By sizing: GPUs, mean wait alone and pooled in seconds, first in first out with greedy backfill."""
POOLING = (
    *("sizing", "gpus", "computed_gpus", "alone_wait_s", "computed_alone_s", "alone_error"),
    *("pooled_wait_s", "computed_pooled_s", "pooled_error", "confined_wait_s", "saved_job_hours"),
)
GAME = (
    *("sharing", "sizing", "coalitions", "simulated_s", "saved", "not_superadditive", "least_core_eps"),
    *("shapley_blocked", "shapley_worst", "worst_group", "nucleolus_blocked"),
)
RULE_COLUMNS = (
    *("rule", "condition", "sizing", "wan", "wan_price_gb", "waiting_price", "notice_s", "lends", "saved", "one_pool", "kept"),
    *(
        "worse_off",
        "least_gain",
        "restarts",
        "wan_cost",
        "compared",
        "blocked",
        "worst_block",
        "received_sum",
        "credits_sum",
        "gives_up",
    ),
)
DATA = {"resnet50": 150e9, "vgg16": 150e9, "inception3": 150e9, "": 20e9}
"""ImageNet for the networks of pictures, 20 GB for the others; every job that runs elsewhere moves it anew."""


def federation(trace: Path, sizing: float) -> Federation:
    """The ten clusters."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sites.toml"
        file.write_text(f'[sites]\ntrace = "{trace.resolve()}"\ncolumn = "cluster"\nload = {sizing}\nnodes = "8xV100"\n')
        return read_sites(file)


def pooling(trace: Path, sizings: list[float]) -> Iterator[dict[str, Any]]:
    """Mean waits alone and pooled."""
    for sizing in sizings:
        sites = federation(trace, sizing)
        jobs = [len(site.jobs) for site in sites.sites]
        pooled, confined = Savings.of(sites, SharingRules(one_pool=True)), Savings.of(sites)
        alone = sum(count * pooled.mean_wait_s(1 << number) for number, count in enumerate(jobs)) / sum(jobs)
        together = pooled.mean_wait_s(pooled.everyone)
        gpus, computed_alone, computed_pooled = COMPUTED.get(sizing, (math.nan,) * 3)
        yield {
            "sizing": sizing,
            "gpus": sum(site.fleet.devices for site in sites.sites),
            "computed_gpus": gpus,
            "alone_wait_s": round(alone),
            "computed_alone_s": computed_alone,
            "alone_error": round(alone / computed_alone - 1, 4),
            "pooled_wait_s": round(together, 1),
            "computed_pooled_s": computed_pooled,
            "pooled_error": round(together / computed_pooled - 1, 4),
            "confined_wait_s": round(confined.mean_wait_s(confined.everyone), 1),
            "saved_job_hours": round(pooled.worth(pooled.everyone)),
        }


def game(trace: Path, sizings: list[float]) -> Iterator[dict[str, Any]]:
    """The savings game of every coalition, and whether the divisions hold."""
    for sizing in sizings:
        for name, sharing in (("one pool", SharingRules(one_pool=True)), ("sites", SharingRules(home_first=True))):
            savings = Savings.of(federation(trace, sizing), sharing)
            started = time.process_time()
            savings.simulate_all()
            seconds = time.process_time() - started
            cooperative = savings.game()
            values = cooperative.table
            value, kernel = shapley(cooperative), nucleolus(cooperative)
            leaving = blocking(cooperative, value.shares)
            yield {
                "sharing": name,
                "sizing": sizing,
                "coalitions": len(values) - 1,
                "simulated_s": round(seconds, 1),
                "saved": round(values[-1]),
                "not_superadditive": sum(1 for _ in losing_unions(values)),
                "least_core_eps": round(kernel.eps, 1),
                "shapley_blocked": len(leaving),
                "shapley_worst": round(leaving[0].gain) if leaving else 0,
                "worst_group": " ".join(cooperative.members(leaving[0].coalition)) if leaving else "",
                "nucleolus_blocked": len(blocking(cooperative, kernel.shares, tolerance=1e-6)),
            }


def losing_unions(values: Any) -> Iterator[tuple[int, int]]:
    """Pairs of disjoint coalitions that save less together than each by itself."""
    everyone = len(values) - 1
    for one in range(1, everyone + 1):
        rest = other = everyone & ~one
        while other:
            if other > one and values[one | other] < values[one] + values[other] - 1e-9:
                yield one, other
            other = (other - 1) & rest


def conditions(sites: Federation) -> Iterator[tuple[str, Federation]]:
    """From nothing but queues to bytes, reclaim and limits. A job-hour of waiting costs $1."""

    def changed(name: str, *, wan: float = 0.0, notice: float = math.inf, lends: float = 1.0) -> tuple[str, Federation]:
        limited = tuple(
            replace(site, notice_s=notice, lends=None if lends == 1 else int(site.fleet.devices * lends))
            for site in sites.sites
        )
        price = 0.02 if wan else 0.0
        return name, replace(sites, sites=limited, currency="$", wan_bytes_per_s=wan, wan_price=price, data_bytes=DATA)

    yield changed("queues alone")
    yield changed("WAN", wan=1.25e9)
    yield changed("WAN, reclaim in 60 s", wan=1.25e9, notice=60.0)
    yield changed("WAN, reclaim at once", wan=1.25e9, notice=0.0)
    yield changed("WAN, reclaim in 60 s, half lent", wan=1.25e9, notice=60.0, lends=0.5)
    yield changed("1 Gb/s WAN, reclaim in 60 s", wan=0.125e9, notice=60.0)


def rules(trace: Path, sizings: list[float], wanted: list[str]) -> Iterator[dict[str, Any]]:
    """What each rule keeps of what one pool would save, with nobody worse off or not."""
    for sizing in sizings:
        sites = federation(trace, sizing)
        pooled = Savings.of(sites, SharingRules(one_pool=True))
        bound = pooled.worth(pooled.everyone)
        for name, condition in conditions(sites):
            for rule in wanted:
                savings = savings_under(condition, rule)
                groups = few_groups(len(condition.sites)) if RULES[rule].by_auction else None
                savings.simulate_all(groups)
                settled = settle(savings, rule)
                verdict = judge(savings.game(), settled.shares, groups)
                first = condition.sites[0]
                yield {
                    "rule": rule,
                    "condition": name,
                    "sizing": sizing,
                    "wan": f"{condition.wan_bytes_per_s * 8e-9:g}Gb/s" if condition.wan_bytes_per_s else "",
                    "wan_price_gb": condition.wan_price,
                    "waiting_price": first.waiting_price,
                    "notice_s": first.notice_s,
                    "lends": "all" if first.lends is None else "half",
                    "saved": round(float(settled.saved.sum())),
                    "one_pool": round(bound),
                    "kept": round(float(settled.saved.sum()) / bound, 4),
                    "worse_off": len(settled.worse_off),
                    "least_gain": round(float(settled.shares.min())),
                    "restarts": int(settled.outcome.restarts.sum()),
                    "wan_cost": round(float(costs_of(condition, savings.demand, settled.outcome).wan.sum())),
                    "compared": verdict.compared,
                    "blocked": verdict.how_many,
                    "worst_block": round(verdict.leaving[0].gain) if verdict.leaving else 0,
                    "received_sum": round(float(settled.received.sum()), 6),
                    "credits_sum": round(float(settled.credits.sum()), 6),
                    "gives_up": " ".join(properties_of(rule).given_up).replace(" ", "_"),
                }


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """What each rule keeps under each condition."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "paceline"
    names = list(dict.fromkeys(row["condition"] for row in rows))
    by_rule = {rule: [row for row in rows if row["rule"] == rule] for rule in dict.fromkeys(row["rule"] for row in rows)}
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, constrained_layout=True)
    for index, (rule, ours) in enumerate(by_rule.items()):
        places = [n + 0.2 * index for n in range(len(ours))]
        axes[0].barh(places, [100 * row["kept"] for row in ours], 0.18, label=rule)
        axes[1].barh(places, [100 * row["worst_block"] / row["one_pool"] for row in ours], 0.18, label=rule)
    axes[0].set_yticks([n + 0.3 for n in range(len(names))], names, fontsize=8)
    axes[0].invert_yaxis()
    axes[0].axvline(90, color="k", lw=0.8, ls="--")
    axes[0].set_xlim(80, 101)
    axes[0].set_title("kept of what one pool saves, % (dashed: 90)", loc="left", fontsize=10)
    axes[1].set_title("most a group gains by leaving, % (auction: of 20 groups)", loc="left", fontsize=10)
    figure.legend(
        *axes[0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside lower center", ncol=len(by_rule)
    )
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["pooling", "game", "rules"])
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--sizings", type=float, nargs="+", default=[0.75])
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--draw", type=Path, help="measure nothing: draw the rows of --out")
    options = parser.parse_args()
    if options.draw:
        return picture(read(options.out), options.draw)
    parts = {
        "pooling": (POOLING, lambda: pooling(options.trace, options.sizings)),
        "game": (GAME, lambda: game(options.trace, options.sizings)),
        "rules": (RULE_COLUMNS, lambda: rules(options.trace, options.sizings, options.rules)),
    }
    columns, measured = parts[options.part]
    found = []
    for row in measured():
        append(options.out, columns, row)
        found.append(row)
        print("  ".join(f"{name} {row[name]}" for name in columns), flush=True)
    if options.picture and options.part == "rules":
        picture(found, options.picture)


if __name__ == "__main__":
    main()
