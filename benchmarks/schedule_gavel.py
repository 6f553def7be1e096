"""Gavel's published figures (OSDI 2020) beside ours: the static physical trace, and the mean JCT against the arrival rate.

    python benchmarks/schedule_gavel.py static --data ../shared/data --out RESULTS/schedule_gavel.csv
    python benchmarks/schedule_gavel.py single --rates 0.4,4 --policies max_min_perf --data ../shared/data --out ...

RESULTS is benchmarks/results. ``static`` are 96 jobs of ``gavel_physical.csv`` on 8 V100 + 16 P100 + 24 K80, ``single`` and
``several`` the continuous traces of figures 8 and 9 on 36 of each. As published, jobs 4000 to 4999 count. The clusters of
continuous traces start empty ``WARM_H`` before the first of them (published: with job 0), and jobs keep arriving for
``AFTER_H`` behind the last; a row says how many of the jobs that count had not ended then. ``sia`` is the workload philly/1
of Sia's simulator under its Gavel.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import sia_setting
from gavel_fifo import gavel_fifo, gavel_fifo_fastest
from gavel_setting import ThroughputRun, Throughputs, continuous_jobs, read_throughputs
from rows import append

from paceline.csv_rows import read
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.policies.critical_first import critical_first
from paceline.scheduling.policies.finish_time_fairness import finish_time_fairness
from paceline.scheduling.policies.makespan import makespan
from paceline.scheduling.policies.max_min import max_min
from paceline.scheduling.policies.most_progress import max_throughput
from paceline.scheduling.policies.registry import policy_named
from paceline.scheduling.policies.solvers.time_shares import PUBLISHED, RoundRules
from paceline.scheduling.simulate.schedule import ClusterSchedule, ClusterSettings
from paceline.scheduling.simulate.simulator import simulate
from paceline.scheduling.speeds.profiles import read_profiles
from paceline.scheduling.state import Policy
from paceline.scheduling.traces.reader import read_trace

COLUMNS = (
    "setting", "policy", "jobs_per_hour", "jobs", "not_ended", "avg_jct_h", "published_jct_h", "jct_error_percent",
    "makespan_h", "published_makespan_h", "makespan_error_percent", "slowest_decision_s", "simulation_s",
)  # fmt: skip
UNAWARE = replace(PUBLISHED, shuffled=True)
POLICIES: Mapping[str, Policy] = {
    "fifo": gavel_fifo,
    "fifo_perf": gavel_fifo_fastest,
    "max_min_fairness": partial(max_min, aware=False, sharing=UNAWARE),
    "max_min_fairness_perf": partial(max_min, sharing=PUBLISHED),
    "finish_time_fairness": partial(finish_time_fairness, aware=False, sharing=UNAWARE),
    "finish_time_fairness_perf": partial(finish_time_fairness, sharing=PUBLISHED),
    "min_total_duration_perf": partial(makespan, sharing=PUBLISHED),
    "max_sum_throughput_perf": partial(max_throughput, sharing=RoundRules(forgets=False)),
    "critical_first": critical_first,
    "max_min_fairness_perf as run": policy_named("max_min").decide,
    "finish_time_fairness_perf as run": policy_named("finish_time_fairness").decide,
    "min_total_duration_perf as run": policy_named("makespan").decide,
}
"""By the published names; ``as run``: as the command runs them, with other rounds and with ageing."""
AS_RUN = " as run"
SETTINGS = ClusterSettings(round_s=360.0, restart_s=0.0)
STATIC_CLUSTER, CLUSTER = "8x1xV100 + 16x1xP100 + 24x1xK80", "36x1xV100 + 36x1xP100 + 36x1xK80"
STATIC = (
    *("fifo", "max_min_fairness", "max_min_fairness_perf", "min_total_duration_perf", "critical_first"),
    *("max_min_fairness_perf as run", "min_total_duration_perf as run"),
)
FIRST, LAST = 4000, 5000
WARM_H, AFTER_H = 500.0, 300.0


def run(jobs: Sequence[Job], nodes: Fleet, name: str, throughputs: Throughputs, longest_s: float = 1e9) -> ClusterSchedule:
    """The jobs under a policy of ``POLICIES``."""
    settings = replace(SETTINGS, longest_s=longest_s)
    return simulate(jobs, nodes, POLICIES[name], lambda job: ThroughputRun(job, throughputs, nodes), settings)


def static(data: Path, name: str) -> dict[str, object]:
    """A row of the static trace."""
    jobs = read_trace(data / "traces/gavel_physical.csv", {"trace": "max_min_fairness"}).jobs
    published = _published(data, "gavel osdi20", name)
    started = time.perf_counter()
    schedule = run(jobs, Fleet.named(STATIC_CLUSTER), name, read_throughputs(data / "profiles/gavel_throughputs.csv"))
    seconds = time.perf_counter() - started
    jct_s = [outcome.jct_s for outcome in schedule.outcomes]
    return _row("static", name, 0.0, jct_s, schedule, seconds) | _beside(
        float(np.mean(jct_s)) / 3600,
        published.get("avg_jct_s", math.nan) / 3600,
        max(outcome.end_s for outcome in schedule.outcomes) / 3600,
        published.get("makespan_s", math.nan) / 3600,
    )


def in_sia(data: Path, name: str) -> dict[str, object]:
    """A row of Sia's setting, philly/1. Its Gavel never forgets what a job received."""
    profiles, nodes = read_profiles(data / "profiles"), Fleet.named(sia_setting.CLUSTER)
    trace = read_trace(data / "traces/sia_workloads.csv", {"set": "philly", "workload": "1"})
    jobs = [replace(job, epochs=1, adapts=frozenset()) for job in trace.jobs]
    started = time.perf_counter()
    schedule = simulate(
        jobs,
        nodes,
        POLICIES[name],
        lambda job: sia_setting.SiaGavelRun(job, profiles[job.model], nodes),
        sia_setting.settings(360.0),
    )
    seconds = time.perf_counter() - started
    published = _published(data, "sia sosp23", "gavel")
    jct_s = [outcome.jct_s for outcome in schedule.outcomes]
    length_s = max(outcome.end_s for outcome in schedule.outcomes) - min(job.arrival_s for job in jobs)
    return _row("sia", name, 0.0, jct_s, schedule, seconds) | _beside(
        float(np.mean(jct_s)) / 3600, published["avg_jct_s"] / 3600, length_s / 3600, published["makespan_s"] / 3600
    )


def _published(data: Path, simulator: str, name: str) -> dict[str, float]:
    """Metrics of a run of a published simulator."""
    return {
        row.text("metric"): row.number_of("value") or math.nan
        for row in read(data / "traces/reference_simulator_runs.csv", ("simulator", "policy", "metric", "value"))
        if row.text("simulator") == simulator and row.text("policy") == name.removesuffix(AS_RUN)
    }


def continuous(data: Path, name: str, rate: float, several: bool) -> dict[str, object]:
    """A row of a continuous trace."""
    throughputs = read_throughputs(data / "profiles/gavel_throughputs.csv")
    first = max(0, FIRST - math.ceil(WARM_H * rate))
    count = LAST + math.ceil(AFTER_H * rate)
    jobs = list(itertools.islice(continuous_jobs(throughputs, rate, several=several), first, count))
    start_s = jobs[0].arrival_s
    jobs = [replace(job, arrival_s=job.arrival_s - start_s) for job in jobs]
    started = time.perf_counter()
    schedule = run(jobs, Fleet.named(CLUSTER), name, throughputs, jobs[LAST - first - 1].arrival_s + AFTER_H * 3600)
    seconds = time.perf_counter() - started
    counted = [outcome.jct_s for outcome in schedule.outcomes[FIRST - first : LAST - first]]
    setting = "several" if several else "single"
    return _row(setting, name, rate, counted, schedule, seconds) | _beside(
        float(np.nanmean(counted)) / 3600, _curve(data, "multiple" if several else "single", name, rate), math.nan, math.nan
    )


def _curve(data: Path, experiment: str, name: str, rate: float) -> float:
    """The published point; NaN: there is none."""
    for row in read(data / "traces/reference_gavel_curves.csv", ("experiment", "job_rate_per_hour", "policy", "avg_jct_hours")):
        same = (
            row.text("policy") == name.removesuffix(AS_RUN) and abs((row.number_of("job_rate_per_hour") or 0.0) - rate) < 1e-6
        )
        if same and experiment in row.text("experiment"):
            return row.number_of("avg_jct_hours") or math.nan
    return math.nan


def _row(
    setting: str, name: str, rate: float, jct_s: Sequence[float], schedule: ClusterSchedule, seconds: float
) -> dict[str, object]:
    return {
        "setting": setting,
        "policy": name,
        "jobs_per_hour": rate or "",
        "jobs": len(jct_s),
        "not_ended": int(np.isnan(jct_s).sum()),
        "slowest_decision_s": round(max(schedule.decision_s), 3),
        "simulation_s": round(seconds, 1),
    }


def _beside(jct_h: float, published_jct_h: float, makespan_h: float, published_makespan_h: float) -> dict[str, object]:
    def shown(value: float, digits: int) -> object:
        return round(value, digits) if math.isfinite(value) else ""

    return {
        "avg_jct_h": shown(jct_h, 3),
        "published_jct_h": shown(published_jct_h, 3),
        "jct_error_percent": shown(100 * (jct_h / published_jct_h - 1), 1),
        "makespan_h": shown(makespan_h, 3),
        "published_makespan_h": shown(published_makespan_h, 3),
        "makespan_error_percent": shown(100 * (makespan_h / published_makespan_h - 1), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setting", choices=("static", "single", "several", "sia"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--policies", default="")
    parser.add_argument("--rates", default="0.4")
    options = parser.parse_args()
    rates = [0.0] if options.setting in ("static", "sia") else [float(rate) for rate in options.rates.split(",")]
    for rate in rates:
        usual = ("max_sum_throughput_perf",) if options.setting == "sia" else STATIC
        for name in options.policies.split(",") if options.policies else usual:
            if options.setting == "static":
                row = static(options.data, name)
            elif options.setting == "sia":
                row = in_sia(options.data, name)
            else:
                row = continuous(options.data, name, rate, options.setting == "several")
            append(options.out, COLUMNS, row)
            print(", ".join(f"{key} {value}" for key, value in row.items() if value != ""), flush=True)


if __name__ == "__main__":
    main()
