"""Policies in Pollux's setting (OSDI 2021, section 5.3): 16 nodes of four T4, TunedJobs, rounds of 60 s, restarts of 30 s.

    python benchmarks/schedule_pollux.py --data ../shared/data --out benchmarks/results/schedule_pollux.csv --part fidelity
    ... --part usual      what users get: jobs age, and placement is best fit; also policies without a published row
    ... --part error      average completion of every policy against the error of speeds, and of the work left
    ... --part profiles   every step profiled beforehand, what each job saw of itself, and no profile but a datasheet

``fidelity`` is by the rules of the authors: no job ages, and the simulators of las and optimus fill the node with the most free
devices first. The other parts have the policies of the registry, as the command runs them.
``schedule_better.py`` has paceline beside the published policy.
``ratio`` and ``rank_correlation`` are against the published completion of each job in ``reference_pollux_jct.csv``.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pollux_setting import CLUSTER, jobs_for, predictions, runs_for
from rows import append
from scipy.stats import spearmanr

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.policies.goodput import goodput
from paceline.scheduling.policies.las import las
from paceline.scheduling.policies.optimus import optimus
from paceline.scheduling.policies.registry import POLICIES, policy_named
from paceline.scheduling.policies.solvers.placement_rule import placing
from paceline.scheduling.simulate.schedule import ClusterSettings
from paceline.scheduling.simulate.simulator import simulate
from paceline.scheduling.speeds.profiles import read_profiles
from paceline.scheduling.state import Policy
from paceline.scheduling.traces.reader import read_trace

COLUMNS = (
    "part", "load", "workload", "policy", "knowledge", "work", "error", "work_error", "seed", "jobs", "avg_jct_s", "p50_jct_s",
    "p99_jct_s", "makespan_s", "restarts_per_job", "published_policy", "published_avg_s", "published_p99_s", "ratio",
    "p99_ratio", "rank_correlation",
)  # fmt: skip
PARTS = ("fidelity", "usual", "error", "profiles")
PUBLISHED = {"las": "tiresias", "optimus": "optimus"}
"""Policies of ``reference_pollux_jct.csv``, where that is not ``pollux``."""
AUTHORS: Mapping[str, Policy] = {
    "las": placing(las, "most_free"),
    "optimus": placing(optimus, "most_free"),
    "goodput": goodput,
}
"""Policies by the rules of their authors: no ageing, and two fill the node with the most free devices first."""
USUAL = (*AUTHORS, "max_min", "finish_time_fairness", "fifo", "easy", "conservative", "slurm")
ERRORS = (0.0, 0.05, 0.1, 0.2, 0.4)
ROUNDS_S = dict.fromkeys(("max_min", "finish_time_fairness", "makespan", "max_throughput"), 360.0)
"""Of policies that share time (Gavel, OSDI 2020, section 5)."""
WITHOUT = {"cost", "deadline", "edf"}
"""They ask for prices of several types and for deadlines."""


def cases(part: str) -> Iterator[dict[str, Any]]:
    """What is run for each load and workload."""
    if part == "fidelity":
        for policy in AUTHORS:
            yield {"policy": policy}
    elif part == "usual":
        for policy in USUAL:
            yield {"policy": policy}
    elif part == "error":
        for policy in POLICIES:
            if policy not in WITHOUT:
                for error in ERRORS:
                    yield {"policy": policy, "knowledge": "measured", "error": error}
                for error in ERRORS[1:]:
                    yield {"policy": policy, "knowledge": "measured", "work_error": error}
    else:
        for policy in ("goodput", "sia", "paceline"):
            for knowledge in ("measured", "online", "predicted"):
                yield {"policy": policy, "knowledge": knowledge}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", choices=PARTS, default="fidelity")
    parser.add_argument("--loads", default="0.5x,1.0x,1.5x,2.0x")
    parser.add_argument("--workloads", default="1,2,3,4")
    parser.add_argument("--policies", default="", help="only these")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    fleet, profiles = Fleet.named(CLUSTER), read_profiles(options.data / "profiles")
    known, published = predictions(fleet), read_published(options.data / "traces" / "reference_pollux_jct.csv")
    for load in options.loads.split(","):
        for workload in options.workloads.split(","):
            where = {"set": load, "workload": workload}
            trace = read_trace(options.data / "traces" / "pollux_workloads.csv", where)
            for case in cases(options.part):
                policy, beliefs = case["policy"], {name: value for name, value in case.items() if name != "policy"}
                if options.policies and policy not in options.policies.split(","):
                    continue
                runs = runs_for(policy, fleet, profiles, pool=known.pool(profiles), seed=options.seed, **beliefs)
                schedule = simulate(
                    jobs_for(policy, trace.jobs),
                    fleet,
                    deciding(policy, options.part),
                    runs,
                    ClusterSettings(round_s=60.0 if options.part == "usual" else ROUNDS_S.get(policy, 60.0)),
                )
                jcts = {outcome.job.name: outcome.jct_s for outcome in schedule.outcomes}
                reference = published.get((PUBLISHED.get(policy, "pollux"), load, workload), {})
                row = {
                    "part": options.part,
                    "load": load,
                    "workload": workload,
                    "policy": policy,
                    "knowledge": beliefs.get("knowledge", "measured" if policy == "optimus" else "online"),
                    "work": "stated" if beliefs.get("work_stated", True) else "of such jobs that ended",
                    "error": beliefs.get("error", 0.0),
                    "work_error": beliefs.get("work_error", 0.0),
                    "seed": options.seed,
                    "jobs": len(jcts),
                    **figures(jcts),
                    "makespan_s": round(max(o.end_s for o in schedule.outcomes)),
                    "restarts_per_job": round(float(np.mean([o.restarts for o in schedule.outcomes])), 2),
                    "published_policy": PUBLISHED.get(policy, "pollux"),
                    **against(jcts, reference),
                }
                append(options.out, COLUMNS, row)
                print({name: row[name] for name in COLUMNS if name in row}, file=sys.stderr, flush=True)


def deciding(name: str, part: str) -> Policy:
    """The policy by the rules of its authors, or as the command runs it."""
    return AUTHORS[name] if part == "fidelity" else policy_named(name).decide


def figures(jcts: Mapping[str, float]) -> dict[str, float]:
    values = np.array(list(jcts.values()))
    return {
        "avg_jct_s": round(float(values.mean()), 1),
        "p50_jct_s": round(float(np.median(values)), 1),
        "p99_jct_s": round(float(np.percentile(values, 99)), 1),
    }


def against(jcts: Mapping[str, float], reference: Mapping[str, float]) -> dict[str, float]:
    """The published averages beside ours; empty where none is published for the workload."""
    if not reference:
        return {}
    ours = np.array([jcts[name] for name in reference])
    theirs = np.array(list(reference.values()))
    return {
        "published_avg_s": round(float(theirs.mean()), 1),
        "published_p99_s": round(float(np.percentile(theirs, 99)), 1),
        "ratio": round(float(ours.mean() / theirs.mean()), 4),
        "p99_ratio": round(float(np.percentile(ours, 99) / np.percentile(theirs, 99)), 4),
        "rank_correlation": round(float(spearmanr(ours, theirs)[0]), 4),
    }


def read_published(path: Path) -> dict[tuple[str, str, str], dict[str, float]]:
    """Completion of each job, by policy, load and workload."""
    table: dict[tuple[str, str, str], dict[str, float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            table.setdefault((row["policy"], row["load"], row["workload"]), {})[row["job_id"]] = float(row["jct_s"])
    return table


if __name__ == "__main__":
    main()
