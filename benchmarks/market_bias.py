"""How biased may predicted speeds be before sharing stops being individually rational?

    python benchmarks/market_bias.py --trace ITP.csv --out RESULTS/market_bias.csv --picture RESULTS/market_bias.svg

RESULTS is benchmarks/results. The ten clusters of ITP get three device types in turn (assumed: the trace names none). True
speeds on another type are Paceline's predictions for the models that it knows; jobs of the others stay on their type. What is
*believed* of a foreign type is the truth times a bias, the same for all models, or with a random error of each model and
site. Jobs run at true speeds where they were believed to end first, and are settled by believed speeds. The load of the
clusters sets what there is to gain by queueing together. Data sets move over 10 Gb/s at $0.02 a GB, owners have their devices
back in 60 s, and a job-hour of waiting costs $1 (market_itp.py, "WAN, reclaim in 60 s").
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from market_itp import conditions, federation
from rows import append, read

from paceline.market.federation.affinity import predicted_speed
from paceline.market.federation.federation_state import FederationDemand
from paceline.market.federation.flows import flows_of
from paceline.market.federation.site import Federation
from paceline.market.game.savings import Savings, SharingRules
from paceline.market.game.settlement import savings_under, settle
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job

COLUMNS = (
    *("kind", "bias", "seed", "sizing", "rule", "saved", "kept", "worse_off", "least_gain", "least_site", "guest_hours"),
    "believed_over_true",
)
TYPES = ("V100", "A100 40GB", "T4")
NAMES = {"resnet50": "resnet-50", "vgg16": "vgg-16", "inception3": "inception-v3", "bert": "bert-large", "gpt2": "gpt2"}
"""Of the trace, as ``paceline predict`` knows them."""
BIASES = (0.125, 0.25, 0.5, 0.7, 0.85, 1.0, 1.18, 1.41, 2.0, 4.0, 8.0)
ERRORS = (0.1, 0.2, 0.4, 0.8, 1.6)
SEEDS = 5
RULES = ("credits", "prices", "auction")


def mixed(trace: Path, sizing: float) -> Federation:
    """The clusters with device types in turn."""
    plain = dict(conditions(federation(trace, sizing)))["WAN, reclaim in 60 s"]
    sites = []
    for number, site in enumerate(plain.sites):
        nodes = site.fleet.groups[0].nodes
        jobs = tuple(replace(job, model=NAMES.get(job.model, ""), batch=0) for job in site.jobs)
        sites.append(replace(site, fleet=Fleet.named(f"{nodes}x8x{TYPES[number % len(TYPES)]}"), jobs=jobs))
    return replace(plain, sites=tuple(sites))


def speeds() -> Any:
    """Predicted, where the network is known and fits both types."""
    predicted = predicted_speed()

    def speed(job: Job, home: str, device: str) -> float:
        return predicted(job, home, device)

    return speed


def believed(demand: FederationDemand, federation: Federation, factor: Any) -> FederationDemand:
    """With what is believed of foreign types: ``factor(kinds, pools)`` times the truth."""
    types = np.array([group.device for site in federation.sites for group in site.fleet.groups])
    home = np.array([federation.sites[site].fleet.groups[0].device for site in demand.kind_site])
    foreign = types[None] != home[:, None]
    return replace(demand, believed=np.where(foreign, demand.speed * factor, demand.speed))


def cases(demand: FederationDemand) -> Iterator[tuple[str, float, int, Any]]:
    """Kind, size and seed of an error, and its factors."""
    for bias in BIASES:
        yield "bias", bias, 0, bias
    for error in ERRORS:
        for seed in range(SEEDS):
            rng = np.random.default_rng(seed)
            yield "error", error, seed, np.exp(rng.normal(0, error, demand.speed.shape))


def study(trace: Path, sizing: float) -> Iterator[dict[str, Any]]:
    """A row for each error and rule."""
    sites = mixed(trace, sizing)
    base = Savings.of(sites, SharingRules(home_first=True), speeds())
    true = base.worth(base.everyone)
    foreign = (base.demand.speed > 0) & (base.demand.speed != 1)
    unbiased = {rule: savings_under(sites, rule, speeds()) for rule in RULES}
    for kind, size, seed, factor in cases(base.demand):
        for rule in RULES:
            savings = unbiased[rule].changed(demand=believed(unbiased[rule].demand, sites, factor))
            settled = settle(savings, rule)
            saved, shares = settled.saved, settled.shares
            hours = flows_of(savings.demand, settled.outcome, len(sites.sites), periods=1).hours
            ratio = np.exp(np.log(savings.demand.believed[foreign] / savings.demand.speed[foreign]).mean())
            yield {
                "kind": kind,
                "bias": size,
                "seed": seed,
                "sizing": sizing,
                "rule": rule,
                "saved": round(float(saved.sum())),
                "kept": round(float(saved.sum()) / true, 4),
                "worse_off": int((shares < -1e-6 * abs(true)).sum()),
                "least_gain": round(float(shares.min())),
                "least_site": sites.names[int(shares.argmin())],
                "guest_hours": round(float(hours.sum() - hours.trace())),
                "believed_over_true": round(float(ratio), 3),
            }


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """What is kept, and how many sites would do better alone, over the size of the error; a line a load."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "paceline"
    figure, axes = plt.subplots(2, 2, figsize=(11, 6), constrained_layout=True, sharey="row")
    sizings = sorted({row["sizing"] for row in rows})
    marks = {"bias": (0.125, 0.25, 0.5, 1, 2, 4, 8), "error": ERRORS}
    for column, kind in enumerate(("bias", "error")):
        for place, sizing in enumerate(sizings):
            colour = plt.get_cmap("viridis")(place / max(len(sizings), 1))
            ours = [row for row in rows if (row["kind"], row["sizing"]) == (kind, sizing)]
            sizes = sorted({row["bias"] for row in ours})
            for axis, name, best in ((axes[0][column], "kept", min), (axes[1][column], "worse_off", max)):
                worst = [best(row[name] for row in ours if row["bias"] == size) for size in sizes]
                scale = 100 if name == "kept" else 1
                axis.plot(sizes, [scale * value for value in worst], "o-", ms=3, color=colour, label=f"load {sizing:g}")
        for axis in (axes[0][column], axes[1][column]):
            axis.set_xscale("log")
            axis.set_xticks(marks[kind], [f"{mark:g}" for mark in marks[kind]])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
        what = {"bias": "believed / true speed of foreign devices", "error": "standard error of log speed, by model and site"}[
            kind
        ]
        axes[1][column].set_xlabel(what)
    axes[0][0].set_title("kept of the saving with true speeds, % (worst rule and seed)", loc="left", fontsize=10)
    axes[1][0].set_title("sites that would do better alone, of 10 (worst rule and seed)", loc="left", fontsize=10)
    axes[0][1].legend(frameon=False, fontsize=8, loc="lower left")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--sizings", type=float, nargs="+", default=[0.15, 0.3, 0.45, 0.6, 0.75])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--draw", type=Path, help="measure nothing: draw the rows of --out")
    options = parser.parse_args()
    if options.draw is None:
        for sizing in options.sizings:
            found = list(study(options.trace, sizing))
            for row in found:
                append(options.out, COLUMNS, row)
            worst = max(found, key=lambda row: row["worse_off"])
            case = f"{worst['rule']}, {worst['kind']} {worst['bias']}"
            print(f"load {sizing:g}: at most {worst['worse_off']} sites worse off ({case})", flush=True)
    if options.picture or options.draw:
        picture(read(options.out), options.draw or options.picture)


if __name__ == "__main__":
    main()
