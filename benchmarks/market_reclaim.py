"""What should a lender ask for, or give up, when it may have its devices back within t seconds?

    python benchmarks/market_reclaim.py --trace ITP.csv --out RESULTS/market_reclaim.csv --picture RESULTS/market_reclaim.svg

RESULTS is benchmarks/results. Ten clusters of ITP share. One at a time reclaims with a notice of t seconds; the guests of the
others stay to their end. Data sets move over 10 Gb/s at $0.02 a GB, anew after each reclaim, and an hour that a job waits costs
$1. Two figures a lent device-hour: what the lender's own jobs gain by the right to reclaim, and what the others' jobs lose by
it, where a job saves a checkpoint in so many seconds and has one every so often. A discount between the two leaves both better
off. Sums over the lenders; mean and range over the trace and draws of its weeks.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from market_itp import conditions, federation
from rows import append, read

from paceline.market.federation.flows import flows_of
from paceline.market.federation.gain import drawn
from paceline.market.game.savings import Savings, SharingRules

COLUMNS = (
    *("sizing", "notice_s", "save_s", "checkpoint_s", "draws", "lent_hours", "reclaims", "reclaims_per_1000h"),
    *("lender_gains", "lender_low", "lender_high", "others_lose", "others_low", "others_high"),
)
NOTICES = (0.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
SAVES = (10.0, 60.0, 300.0)
CHECKPOINTS = (600.0, 1800.0, 7200.0)


def study(trace: Path, sizing: float, draws: int, notices: list[float]) -> Iterator[dict[str, Any]]:
    """A row for each notice and cost of a checkpoint."""
    sites = dict(conditions(federation(trace, sizing)))["WAN"]
    base = Savings.of(sites, SharingRules(home_first=True))
    rng = np.random.default_rng(0)
    worlds = [base.demand, *(drawn(base.demand, rng) for _ in range(draws))]
    patient = [base.changed(demand=demand) for demand in worlds]
    without = [savings.costs(base.everyone).total for savings in patient]
    for checkpoint in CHECKPOINTS:
        for save in SAVES:
            for notice in notices:
                figures = []
                for savings, before in zip(patient, without, strict=True):
                    figures.append(_of_all_lenders(savings, before, notice, save, checkpoint))
                gains, losses = ([each[n] / each[2] for each in figures] for n in (0, 1))
                _, _, hours, reclaims = figures[0]
                yield {
                    "sizing": sizing,
                    "notice_s": notice,
                    "save_s": save,
                    "checkpoint_s": checkpoint,
                    "draws": draws,
                    "lent_hours": round(hours),
                    "reclaims": reclaims,
                    "reclaims_per_1000h": round(1000 * reclaims / hours, 2),
                    "lender_gains": round(float(np.mean(gains)), 5),
                    "lender_low": round(float(np.percentile(gains, 10)), 5),
                    "lender_high": round(float(np.percentile(gains, 90)), 5),
                    "others_lose": round(float(np.mean(losses)), 5),
                    "others_low": round(float(np.percentile(losses, 10)), 5),
                    "others_high": round(float(np.percentile(losses, 90)), 5),
                }


def _of_all_lenders(
    savings: Savings, before: Any, notice: float, save: float, checkpoint: float
) -> tuple[float, float, float, int]:
    """Sums over lenders: what each gains, what the others lose, device-hours lent, and evictions."""
    sites = len(savings.federation.sites)
    gains = losses = hours = 0.0
    reclaims = 0
    for lender in range(sites):
        notices = np.full(sites, math.inf)
        notices[lender] = notice
        rules = replace(savings.rules, notice_s=notices, save_s=save, checkpoint_s=checkpoint)
        changed = savings.changed(rules=rules)
        outcome = changed.outcome(savings.everyone)
        change = before - changed.costs(savings.everyone).total
        gains += float(change[lender])
        losses -= float(change.sum() - change[lender])
        lent = flows_of(savings.demand, outcome, sites, periods=1).hours
        hours += float(lent[lender].sum() - lent[lender, lender])
        reclaims += int(outcome.restarts.sum())
    return gains, losses, hours, reclaims


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Both figures over the notice: a panel a checkpoint interval, a line a time to save."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "paceline"
    intervals = sorted({row["checkpoint_s"] for row in rows})
    figure, axes = plt.subplots(
        1, len(intervals), figsize=(4.2 * len(intervals), 4), sharey=True, constrained_layout=True, squeeze=False
    )
    for axis, interval in zip(axes[0], intervals, strict=True):
        for save, colour in zip(sorted({row["save_s"] for row in rows}), ("#3b6ea8", "#7fb069", "#b9521a"), strict=False):
            ours = sorted(
                (r for r in rows if r["checkpoint_s"] == interval and r["save_s"] == save), key=lambda r: r["notice_s"]
            )
            notices = [max(row["notice_s"], 3.0) for row in ours]
            axis.plot(
                notices,
                [row["others_lose"] for row in ours],
                "o-",
                ms=3,
                color=colour,
                label=f"others lose, {save:g} s to save",
            )
            axis.fill_between(
                notices, *([row[f"others_{end}"] for row in ours] for end in ("low", "high")), color=colour, alpha=0.12, lw=0
            )
            axis.plot(
                notices, [row["lender_gains"] for row in ours], "--", color=colour, lw=1, label=f"lender gains, {save:g} s"
            )
        axis.set_xscale("log")
        axis.axhline(0, color="k", lw=0.6)
        axis.set_title(f"a checkpoint every {interval / 60:g} min", loc="left", fontsize=10)
        axis.set_xlabel("notice, s (3: at once)")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("$ a lent device-hour")
    axes[0][-1].legend(frameon=False, fontsize=7)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--sizing", type=float, default=0.75)
    parser.add_argument("--draws", type=int, default=15)
    parser.add_argument("--notices", type=float, nargs="+", default=list(NOTICES))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--draw", type=Path, help="measure nothing: draw the rows of --out")
    options = parser.parse_args()
    if options.draw is None:
        for row in study(options.trace, options.sizing, options.draws, options.notices):
            append(options.out, COLUMNS, row)
            print("  ".join(f"{name} {row[name]}" for name in COLUMNS), flush=True)
    if options.picture or options.draw:
        picture(read(options.out), options.draw or options.picture)


if __name__ == "__main__":
    main()
