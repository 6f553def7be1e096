"""Processor seconds of one warm step, by stage: dense and bf16 as PyTorch has them, int4 and TernGrad as Paceline has them.

    python benchmarks/step_processor.py --out RESULTS/step_processor.csv

The cluster, the sizes and the made-up gradients are those of ``against_hooks.py``. Cases take turns, ``--rounds`` times; a
row is the median of the rounds, in seconds a step and host. ``floor_s`` is the longer of the link's time for the bytes and of
all hosts' processor time on the given cores: no step is shorter.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import lab_cases
from against_hooks import CASES
from rows import append
from speedup_lab import COMPUTE_S

from paceline.units import parse_bandwidth
from paceline.workload import Workload

LABELS = ("DDP", "PyTorch bf16 hook", "int4", "TernGrad, sharded", "TernGrad, ring")
SECONDS = ("processor_s", "user_s", "system_s", "engine_system_s", "zero_grad_s", "wall_s", "socket_mb")
COLUMNS = ("network", "hosts", "link", "label", *SECONDS, "floor_s", "cores", "rounds", "steps", "stages")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="alexnet", choices=sorted(COMPUTE_S))
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--link", default="1Gb/s", help="of every host (default 1Gb/s)")
    parser.add_argument("--steps", type=int, default=5, help="counted in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=float, default=2, help="that all hosts share, for floor_s")
    parser.add_argument("--only", nargs="+", default=list(LABELS))
    parser.add_argument("--out", type=Path)
    o = parser.parse_args()
    o.link = lab_cases.actual(o.link)
    table = Workload.named(o.network)
    spec = {**lab_cases.overlapped(table, COMPUTE_S[o.network], 3, o.steps), "gradient": {}}
    cases = [case for case in CASES if case["label"] in o.only] * o.rounds
    with lab_cases.cluster(o.hosts, o.link) as on:
        measured = lab_cases.run(on, spec, cases, script="step_processor_rank.py")
    for label in o.only:
        row = median([case for case in measured if case["label"] == label])
        link_s = 0.0 if o.link == "loopback" else row["socket_mb"] * 1e6 / parse_bandwidth(o.link)
        row |= {"floor_s": max(link_s, row["processor_s"] * o.hosts / o.cores), "cores": o.cores}
        stages = ", ".join(f"{name} {seconds:.3f}" for name, seconds in row["stages"].items())
        print(
            f"{label:20} processor {row['processor_s']:.3f} s (user {row['user_s']:.3f}, system {row['system_s']:.3f}, of it"
            f" sockets' threads {row['engine_system_s']:.3f}), zero_grad {row['zero_grad_s']:.3f}, {row['socket_mb']:.1f} MB,"
            f" link {link_s:.2f} s, floor {row['floor_s']:.2f} s, step {row['wall_s']:.2f} s\n    {stages}",
            flush=True,
        )
        if o.out:
            given = {key: getattr(o, key) for key in ("network", "hosts", "link", "rounds", "steps")}
            append(o.out, COLUMNS, {**row, **given, "label": label, "stages": stages})


def median(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of every figure over the rounds."""
    row: dict[str, Any] = {name: statistics.median(r[name] for r in rounds) for name in SECONDS}
    row["stages"] = {name: statistics.median(r["stages"][name] for r in rounds) for name in rounds[0]["stages"]}
    return row


if __name__ == "__main__":
    main()
