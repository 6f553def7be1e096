"""auto beside stock DDP: six networks, three links, five runs of each. Its steps take at most 3 % more, by the median.

    python benchmarks/auto_lab.py --out RESULTS/auto_runs.csv
    python benchmarks/auto_lab.py --out RESULTS/auto_runs.csv --table

RESULTS is benchmarks/results; --table measures nothing. In every run both use the same hosts, one after the other. Steps of
auto count from its decision on. Gradients are Student-t noise of the networks' sizes, compute is a sleep:
published where it was (``speedup_lab``), else what Paceline predicts for one V100 and 32 samples.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lab_cases
from rows import append, read
from speedup_lab import COMPUTE_S

import paceline
from paceline.workload import Workload

COLUMNS = ("network", "gradient_mb", "hosts", "link", "repeat", "steps", "compute_s", "ddp_s", "auto_s", "ratio", "way")
NETWORKS = ("alexnet", "googlenet", "vgg-a", "resnet-18", "resnet-50", "inception-v3")
LINKS = ("loopback", "10Gb/s", "1Gb/s")
CASES = ({"label": "DDP", "compression": "torch:dense"}, {"label": "auto", "compression": "auto"})
MOST = 1.03
"""Steps with auto over steps of DDP."""


def main() -> None:
    """Measure what is not in the file yet, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--links", nargs="+", default=list(LINKS))
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12, help="counted steps of each")
    parser.add_argument("--warm", type=int, default=28, help="steps before them: auto decides in these")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="measure nothing: print the table of --out")
    o = parser.parse_args()
    if not o.table:
        there = {(r["network"], r["link"], r["hosts"], r["repeat"]) for r in read(o.out)} if o.out.exists() else set()
        for repeat in range(o.repeats):
            for network in o.networks:
                for link in map(lab_cases.actual, o.links):
                    if (network, link, o.hosts, repeat) not in there:
                        row = measure(network, link, o.hosts, o.warm, o.steps)
                        append(o.out, COLUMNS, {**row, "repeat": repeat})
                        print(f"{network} {link}: {row['ratio']}x of DDP ({row['way']})", flush=True)
    print(table(read(o.out)))


def compute_s(network: str) -> float:
    """Seconds that a step's compute is made to take."""
    if network in COMPUTE_S:
        return COMPUTE_S[network]
    return float(paceline.predict(network, "V100", global_batch_size=32).step_time_s)


def measure(network: str, link: str, hosts: int, warm: int, steps: int) -> dict[str, Any]:
    """One run of DDP and of auto, one after the other."""
    layers, seconds = Workload.named(network), compute_s(network)
    with lab_cases.cluster(hosts, link) as on:
        ddp, auto = lab_cases.run(on, lab_cases.overlapped(layers, seconds, warm, steps), CASES)
    return {
        "network": network,
        "gradient_mb": round(4 * layers.num_parameters / 1e6, 1),
        "hosts": hosts,
        "link": link,
        "steps": steps,
        "compute_s": round(seconds, 5),
        "ddp_s": round(ddp["step_s"], 5),
        "auto_s": round(auto["step_s"], 5),
        "ratio": round(auto["step_s"] / ddp["step_s"], 4),
        "way": auto["way"],
    }


def medians(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], tuple[float, int]]:
    """The median ratio of each network and link, and the number of runs."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        found[row["network"], row["link"]].append(float(row["ratio"]))
    return {key: (statistics.median(ratios), len(ratios)) for key, ratios in found.items()}


def too_slow(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Networks and links at which auto takes more than ``MOST`` of DDP's steps, by the median."""
    return [key for key, (ratio, _) in medians(rows).items() if ratio > MOST]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each network and link, and how many keep the target."""
    every = medians(rows)
    lines = [
        f"{network:14} {link:9} {ratio:.3f}x of DDP's step, median of {n}" for (network, link), (ratio, n) in every.items()
    ]
    return "\n".join([*lines, f"at most {MOST}x: {len(every) - len(too_slow(rows))} of {len(every)}"])


if __name__ == "__main__":
    main()
