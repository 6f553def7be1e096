"""Sia's setting: our policies beside the published simulator's figures.

    python benchmarks/schedule_sia.py --out RESULTS/schedule_sia.csv [--data SHARED/data] [--only philly/1 saturn/2]

RESULTS is benchmarks/results. The data (siasosp23/artifacts @aaf7a0de) is not part of the project: traces/sia_workloads.csv,
traces/reference_simulator_runs.csv and profiles/. A row a run; ``published`` columns are the published simulator's where it
was run.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import sia_setting
from rows import append

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.policies.most_progress import max_throughput
from paceline.scheduling.policies.registry import POLICIES, RIGID
from paceline.scheduling.policies.sia import sia
from paceline.scheduling.policies.solvers.placement_rule import placing
from paceline.scheduling.simulate.fairness import alone_under, finish_time_fairness
from paceline.scheduling.simulate.run import JobRun
from paceline.scheduling.simulate.schedule import ClusterSchedule, ClusterSettings
from paceline.scheduling.simulate.simulator import simulate
from paceline.scheduling.speeds.profiles import ModelProfile, read_profiles
from paceline.scheduling.state import Policy

HERE = Path(__file__).parent
FIGURES = ("avg_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s", "restarts_per_job")
COLUMNS = (
    *("cluster", "workload", "policy", *FIGURES, "device_h_per_job", "worst_ftf", "unfair_share", "decision_ms", "run_s"),
    *(f"published_{name}" for name in FIGURES),
)
AUTHORS: Mapping[str, Policy] = {"sia": sia}
"""Policies by the rules of their authors."""
WORKLOADS = [*(f"philly/{n}" for n in range(1, 5)), *(f"saturn/{n}" for n in range(1, 6)), "newtrace/1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("PACELINE_SHARED", HERE.parents[1] / "shared"))
    parser.add_argument("--data", type=Path, default=shared / "data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=WORKLOADS)
    parser.add_argument("--policies", nargs="+", default=["sia", "gavel"], choices=[*AUTHORS, "gavel"])
    parser.add_argument("--clusters", nargs="+", default=[sia_setting.CLUSTER])
    parser.add_argument("--fairness", action="store_true", help="simulate each job alone, too: minutes")
    options = parser.parse_args()
    profiles = read_profiles(options.data / "profiles")
    for cluster in options.clusters:
        for workload in options.only:
            for policy in options.policies:
                row = measured(options.data, profiles, cluster, workload, policy, options.fairness)
                append(options.out, COLUMNS, row)
                print(" ".join(f"{name}={value}" for name, value in row.items()), flush=True)


def jobs(data: Path, workload: str, policy: str) -> list[Job]:
    """Of a workload such as ``philly/1``, as the policy may change them."""
    with (data / "traces/sia_workloads.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if f"{row['set']}/{row['workload']}" == workload]
    return [
        Job(
            name=row["job_id"],
            arrival_s=float(row["submit_time_s"]),
            model=row["model"],
            devices=int(row["num_gpus"]),
            batch=int(row["batch_size"]),
            epochs=1,
            adapts=RIGID if policy == "gavel" else POLICIES[policy].adapts,
        )
        for row in rows
    ]


def simulated(
    data: Path, profiles: Mapping[str, ModelProfile], cluster: str, workload: str, policy: str
) -> tuple[ClusterSchedule, Callable[[Job, Fleet], JobRun]]:
    """The schedule, and how its jobs run on any cluster."""

    def run(job: Job, fleet: Fleet) -> JobRun:
        if policy == "gavel":
            return sia_setting.SiaGavelRun(job, profiles[job.model], fleet)
        return sia_setting.SiaRun(job, profiles[job.model], fleet, adapts_batch="batch" in job.adapts)

    fleet = Fleet.named(cluster)
    decide, settings = deciding(policy)
    return simulate(jobs(data, workload, policy), fleet, decide, lambda job: run(job, fleet), settings), run


def deciding(policy: str) -> tuple[Policy, ClusterSettings]:
    """``gavel`` is the largest throughput in rounds of 360 s, each device in order.

    The others are as published: no job ages, and the node with the most free devices is filled first.
    """
    if policy != "gavel":
        return placing(AUTHORS[policy], "most_free"), sia_setting.settings()
    decide = partial(max_throughput, sharing=sia_setting.GAVEL)
    return lambda state: replace(decide(state), rule="in_order"), sia_setting.settings(360.0)


def figures(schedule: ClusterSchedule) -> dict[str, float]:
    """As Sia's simulator counts them: the 99th percentile is the entry at 0.99 n of the sorted times."""
    times = np.sort([outcome.jct_s for outcome in schedule.outcomes])
    arrivals = [outcome.job.arrival_s for outcome in schedule.outcomes]
    values = (
        times.mean(),
        times[len(times) // 2],
        times[int(0.99 * len(times))],
        max(outcome.end_s for outcome in schedule.outcomes) - min(arrivals),
        np.mean([outcome.restarts for outcome in schedule.outcomes]),
    )
    return {name: round(float(value), 3) for name, value in zip(FIGURES, values, strict=True)}


def published(data: Path, workload: str, policy: str) -> dict[str, float]:
    """Of the published simulator, where it was run."""
    with (data / "traces/reference_simulator_runs.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["simulator"].startswith("sia ")]
    return {row["metric"]: float(row["value"]) for row in rows if (row["workload"], row["policy"]) == (workload, policy)}


def measured(
    data: Path, profiles: Mapping[str, ModelProfile], cluster: str, workload: str, policy: str, fairness: bool
) -> dict[str, object]:
    """A row."""
    started = time.perf_counter()
    schedule, run = simulated(data, profiles, cluster, workload, policy)
    row: dict[str, object] = {"cluster": cluster, "workload": workload, "policy": policy, **figures(schedule)}
    row["run_s"] = round(time.perf_counter() - started, 1)
    row["device_h_per_job"] = round(_mean([outcome.device_s / 3600 for outcome in schedule.outcomes]), 3)
    row["decision_ms"] = round(float(np.median(schedule.decision_s)) * 1e3, 1)
    if fairness:
        decide, settings = deciding(policy)
        alone = alone_under(decide, run, schedule.fleet, settings)
        ratios = finish_time_fairness(schedule, alone)
        row["worst_ftf"], row["unfair_share"] = round(ratios.worst, 3), round(ratios.unfair_share, 4)
    if cluster == sia_setting.CLUSTER:
        row |= {f"published_{name}": value for name, value in published(data, workload, policy).items()}
    return row


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
