"""Deadlines met of ElasticFlow's 195 jobs on 16 nodes of eight A100, by policy, beside what its own simulator gives.

    python benchmarks/schedule_elasticflow.py SHARED_DATA [--out results/schedule_elasticflow.csv]

The truth is ``elasticflow_throughputs.csv``: a job runs on the sizes that were measured, wherever they are. ``edf largest`` and
``deadline together`` repeat rules of the published simulator (each job on its largest size; jobs that come at one decision are
admitted all or none); it restarts jobs in 0 s (edf) and in 4 to 16 s (ElasticFlow).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

import rows
from elasticflow_setting import TabledRun, read_jobs, read_speeds, speeds_of

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.policies.deadline import deadline
from paceline.scheduling.policies.edf import edf
from paceline.scheduling.policies.las import las
from paceline.scheduling.simulate.run import DurationRun, JobRun
from paceline.scheduling.simulate.schedule import ClusterSchedule, ClusterSettings
from paceline.scheduling.simulate.simulator import simulate
from paceline.scheduling.state import Policy

FLEET = Fleet.named("16x8xA100 SXM 40GB")
DEVICE = FLEET.types[0]
LARGEST = 64
"""Devices of a job in the published simulator."""
QUEUES_S = (3250.0, 7200.0)
"""Device-seconds of the queues of its Tiresias."""
CASES: tuple[tuple[str, Policy, float, float, int | None], ...] = (
    ("edf largest", partial(edf, largest=True), 0.0, 0.0, 19),
    ("las rigid", partial(las, thresholds_s=QUEUES_S), 0.0, 8.0, 96),
    ("deadline together", partial(deadline, together=True), 0.0, 8.0, 171),
    ("edf", edf, 0.0, 16.0, None),
    ("deadline", deadline, 0.0, 0.0, None),
    ("deadline", deadline, 0.0, 16.0, None),
    ("deadline", deadline, 0.0, 30.0, None),
    ("deadline", deadline, 60.0, 16.0, None),
)
"""Name, policy, seconds of a round (0: none) and of a restart, deadlines that the published simulator meets."""
COLUMNS = ("policy", "round_s", "restart_s", "met", "refused", "late", "jobs", "published", "restarts", "slowest_decision_s")


def simulated(data: Path, policy: Policy, round_s: float, restart_s: float, rigid: bool) -> ClusterSchedule:
    """The 195 jobs. Rigid ones run for their stated duration on the devices asked for."""
    tables = read_speeds(data / "profiles" / "elasticflow_throughputs.csv")
    jobs = read_jobs(data / "traces" / "elasticflow_195job.csv")

    def bounded(job: Job) -> Job:
        if rigid:
            return replace(job, adapts=frozenset())
        return replace(job, max_devices=min(max(speeds_of(job, tables, DEVICE)), LARGEST, job.batch))

    def run(job: Job) -> JobRun:
        return DurationRun(job) if rigid else TabledRun(job, FLEET.types, {DEVICE: speeds_of(job, tables, DEVICE)})

    return simulate([bounded(job) for job in jobs], FLEET, policy, run, ClusterSettings(round_s=round_s, restart_s=restart_s))


def counts(schedule: ClusterSchedule) -> dict[str, int]:
    """Deadlines met, jobs refused, jobs late, restarts."""
    met = sum(outcome.met for outcome in schedule.outcomes)
    refused = sum(bool(outcome.removed) for outcome in schedule.outcomes)
    return {
        "met": met,
        "refused": refused,
        "late": len(schedule.outcomes) - met - refused,
        "jobs": len(schedule.outcomes),
        "restarts": sum(outcome.restarts for outcome in schedule.outcomes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "schedule_elasticflow.csv")
    options = parser.parse_args()
    for name, policy, round_s, restart_s, published in CASES:
        schedule = simulated(options.data, policy, round_s, restart_s, rigid="rigid" in name)
        row = {"policy": name, "round_s": round_s, "restart_s": restart_s, **counts(schedule)}
        row |= {"published": "" if published is None else published}
        row |= {"slowest_decision_s": f"{max(schedule.decision_s):.3f}"}
        rows.append(options.out, COLUMNS, row)
        print(", ".join(f"{column} {value}" for column, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
