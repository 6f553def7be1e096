"""The policy ``paceline`` beside the best published one, job by job, in the settings of Pollux and Sia.

    python benchmarks/schedule_better.py --out RESULTS/schedule_better.csv [--data SHARED/data] [--settings NAME ...]

RESULTS is benchmarks/results. A row a workload, and a row ``all`` over the workloads of a setting. ``beside`` is what the same
jobs take under ``published pollux`` (its simulator's completion of each job) or ``our sia`` (``schedule_sia.csv`` has it beside
the published one). Intervals are 95 %, over jobs drawn with replacement in pairs.

``speeds``: what is known of them. ``datasheet``: predictions by constants that saw no step of such a device, corrected by what
all jobs report; nothing was profiled. ``own``: what each job saw of itself. ``true``: the profile itself, a bound.
``work``: ``stated``: the owner says how long the job trains; ``ended``: it is that of such jobs that ended (here all jobs of a
model are equally long); ``unknown``: attained service stands for it. Gradient noise is known at a job's start, then measured.
Our ``sia`` believes in the batch that the trace names, as its simulator does; paceline in the largest that fits.
``published_avg_s`` and ``target_avg_s`` are over all published workloads (eight), of which the given ones are the first four.
These four are easier (2,580 s under Pollux, 2,751 s over eight): compare ``ratio`` with ``target_avg_s / published_avg_s``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pollux_setting
import sia_setting
from rows import append
from schedule_pollux import read_published
from schedule_sia import jobs as sia_jobs
from schedule_sia import simulated as under_sia

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.policies.registry import policy_named
from paceline.scheduling.simulate.compare import difference
from paceline.scheduling.simulate.fairness import alone_under, finish_time_fairness
from paceline.scheduling.simulate.run import JobRun
from paceline.scheduling.simulate.scenario import Knowledge
from paceline.scheduling.simulate.schedule import ClusterSchedule, ClusterSettings
from paceline.scheduling.simulate.simulator import simulate
from paceline.scheduling.speeds.expected_speed import MeasuredEstimate, OnlineEstimate, SpeedEstimate
from paceline.scheduling.speeds.profiles import ModelProfile, read_profiles
from paceline.scheduling.traces.reader import read_trace

COLUMNS = (
    "setting", "workload", "speeds", "work", "jobs", "avg_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s", "restarts_per_job",
    "worst_ftf", "unfair_share", "beside", "beside_avg_s", "beside_p99_s", "beside_makespan_s", "difference_s", "low_s",
    "high_s", "ratio", "ratio_low", "ratio_high", "p99_ratio", "published_avg_s", "target_avg_s",
)  # fmt: skip
PACELINE = policy_named("paceline").decide
"""As a user runs it: with ageing, under which no job starves."""
SPEEDS: Mapping[str, Knowledge] = {"datasheet": "predicted", "own": "online", "true": "measured"}
FOUR = ("1", "2", "3", "4")


@dataclass(frozen=True)
class Setting:
    """Jobs on a cluster, and what was published of them.

    Attributes:
        cases: (speeds, work) and the target for the mean completion in seconds; 0: none was set.
        trace: a load of Pollux's workloads, or a set of Sia's.
    """

    trace: str
    workloads: Sequence[str]
    cases: Mapping[tuple[str, str], float]
    published_avg_s: float
    cluster: str = ""
    fairness: bool = False


SETTINGS: Mapping[str, Setting] = {
    "pollux 1.0x": Setting(
        "1.0x",
        FOUR,
        {
            ("datasheet", "stated"): 2340.0,
            ("datasheet", "ended"): 2475.0,
            ("own", "stated"): 2340.0,
            ("own", "unknown"): 2475.0,
            ("true", "stated"): 0.0,
            ("true", "unknown"): 0.0,
        },
        2751.0,
    ),
    "pollux 2.0x": Setting(
        "2.0x",
        FOUR,
        {("datasheet", "stated"): 4800.0, ("datasheet", "ended"): 4800.0, ("own", "stated"): 4800.0},
        5289.0,
    ),
    "pollux 0.5x": Setting("0.5x", FOUR, {("datasheet", "stated"): 0.0, ("datasheet", "ended"): 0.0}, 1534.0),
    "pollux 1.5x": Setting("1.5x", FOUR, {("datasheet", "stated"): 0.0, ("datasheet", "ended"): 0.0}, 3685.0),
    "sia philly": Setting(
        "philly",
        FOUR,
        {("datasheet", "stated"): 1944.0, ("datasheet", "ended"): 1944.0, ("own", "stated"): 1944.0},
        2160.0,
        sia_setting.CLUSTER,
    ),
    "sia 64 T4": Setting(
        "philly",
        FOUR,
        {("datasheet", "stated"): 6480.0, ("datasheet", "ended"): 6480.0},
        6840.0,
        sia_setting.HOMOGENEOUS,
    ),
    "sia helios": Setting(
        "saturn", ("1", "2", "3", "4", "5"), {("datasheet", "stated"): 0.0}, 2520.0, sia_setting.CLUSTER, fairness=True
    ),
    "sia newtrace": Setting("newtrace", ("1",), {("datasheet", "stated"): 0.0}, 2520.0, sia_setting.CLUSTER),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("PACELINE_SHARED", Path(__file__).parents[2] / "shared"))
    parser.add_argument("--data", type=Path, default=shared / "data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--workloads", nargs="+", help="only these; then there is no row over all")
    options = parser.parse_args()
    profiles = read_profiles(options.data / "profiles")
    for name in options.settings:
        for row in measured(options.data, profiles, name, options.workloads):
            append(options.out, COLUMNS, row)
            print(" ".join(f"{column}={value}" for column, value in row.items()), flush=True)


@dataclass(frozen=True)
class Times:
    """Completion of each job, in the order of the trace, and the makespan; NaN: not published."""

    jct_s: Mapping[str, float]
    makespan_s: float


def measured(
    data: Path, profiles: Mapping[str, ModelProfile], name: str, workloads: Sequence[str] | None = None
) -> Iterator[dict[str, object]]:
    """The rows of a setting."""
    setting = SETTINGS[name]
    runner = Pollux(data, profiles, setting) if name.startswith("pollux") else Sia(data, profiles, setting)
    beside = {workload: runner.beside(workload) for workload in workloads or setting.workloads}
    for (speeds, work), target in setting.cases.items():
        schedules = {workload: runner.schedule(workload, SPEEDS[speeds], work == "stated") for workload in beside}
        what = {"setting": name, "speeds": speeds, "work": work, "beside": runner.BESIDE}
        fair = [runner.fairness(schedule) for schedule in schedules.values()] if setting.fairness else []
        ratios = dict(zip(schedules, fair, strict=True)) if fair else {}
        for workload, schedule in schedules.items():
            row = what | {"workload": workload} | figures([schedule], [beside[workload]])
            yield row | (fairness_of([ratios[workload]]) if ratios else {})
        if not workloads:
            row = what | {"workload": "all"} | figures(list(schedules.values()), list(beside.values()))
            published = {"published_avg_s": setting.published_avg_s, "target_avg_s": target or ""}
            yield row | published | (fairness_of(list(ratios.values())) if ratios else {})


class Pollux:
    """Workloads of Pollux's simulator."""

    BESIDE = "published pollux"

    def __init__(self, data: Path, profiles: Mapping[str, ModelProfile], setting: Setting) -> None:
        self._profiles, self._load = profiles, setting.trace
        self._trace = data / "traces" / "pollux_workloads.csv"
        self._fleet = Fleet.named(pollux_setting.CLUSTER)
        self._predictions = pollux_setting.predictions(self._fleet)
        self._published = read_published(data / "traces" / "reference_pollux_jct.csv")

    def schedule(self, workload: str, knowledge: Knowledge, stated: bool) -> ClusterSchedule:
        """Under paceline."""
        trace = read_trace(self._trace, {"set": self._load, "workload": workload})
        pool = self._predictions.pool(self._profiles)
        runs = pollux_setting.runs_for(
            "paceline", self._fleet, self._profiles, knowledge=knowledge, pool=pool, work_stated=stated
        )
        return simulate(pollux_setting.jobs_for("paceline", trace.jobs), self._fleet, PACELINE, runs, ClusterSettings())

    def beside(self, workload: str) -> Times:
        """As published."""
        jobs = read_trace(self._trace, {"set": self._load, "workload": workload}).jobs
        jcts = self._published["pollux", self._load, workload]
        ends = [job.arrival_s + jcts[job.name] for job in jobs]
        return Times({job.name: jcts[job.name] for job in jobs}, max(ends) - min(job.arrival_s for job in jobs))

    def fairness(self, schedule: ClusterSchedule) -> Mapping[str, float]:
        """Nothing is published of it."""
        return {}


class Sia:
    """Workloads of Sia's simulator."""

    BESIDE = "our sia"

    def __init__(self, data: Path, profiles: Mapping[str, ModelProfile], setting: Setting) -> None:
        self._data, self._profiles, self._set, self._cluster = data, profiles, setting.trace, setting.cluster

    def schedule(self, workload: str, knowledge: Knowledge, stated: bool) -> ClusterSchedule:
        """Under paceline."""
        fleet = Fleet.named(self._cluster)
        jobs = sia_jobs(self._data, f"{self._set}/{workload}", "paceline")
        runs = self._runs(fleet, knowledge, stated)
        return simulate(jobs, fleet, PACELINE, runs, sia_setting.settings())

    def _runs(self, fleet: Fleet, knowledge: Knowledge, stated: bool) -> Callable[[Job], JobRun]:
        pool = sia_setting.predicted(fleet, self._profiles) if knowledge == "predicted" else None

        def run(job: Job) -> JobRun:
            profile = self._profiles[job.model]
            beliefs: SpeedEstimate = (
                MeasuredEstimate(profile) if knowledge == "measured" else pool.of(job.model) if pool else OnlineEstimate()
            )
            adapts = "batch" in job.adapts
            return sia_setting.SiaRun(
                job, profile, fleet, adapts_batch=adapts, beliefs=beliefs, tuned_batch=False, work_stated=stated
            )

        return run

    def beside(self, workload: str) -> Times:
        """Under our ``sia``, which learns of each job what it sees, after one device of each type was profiled."""
        schedule, _ = under_sia(self._data, self._profiles, self._cluster, f"{self._set}/{workload}", "sia")
        return Times({outcome.job.name: outcome.jct_s for outcome in schedule.outcomes}, makespan_s(schedule))

    def fairness(self, schedule: ClusterSchedule) -> Mapping[str, float]:
        """Each job beside itself alone on its share under paceline (Sia, section 5.5)."""
        runs: dict[Fleet, Callable[[Job], JobRun]] = {}

        def alone(job: Job, part: Fleet) -> JobRun:
            if part not in runs:
                runs[part] = self._runs(part, "predicted", stated=True)
            return runs[part](job)

        alone_s = alone_under(PACELINE, alone, schedule.fleet, sia_setting.settings())
        return finish_time_fairness(schedule, alone_s).ratio


def figures(schedules: Sequence[ClusterSchedule], beside: Sequence[Times]) -> dict[str, object]:
    """Of all jobs of these workloads; the makespan is the mean over workloads."""
    pairs = [
        (outcome.jct_s, times.jct_s[outcome.job.name])
        for schedule, times in zip(schedules, beside, strict=True)
        for outcome in schedule.outcomes
    ]
    ours, theirs = np.array(pairs).T
    restarts = [outcome.restarts for schedule in schedules for outcome in schedule.outcomes]
    tail, their_tail = np.percentile(ours, 99), np.percentile(theirs, 99)
    return {
        "jobs": len(ours),
        "avg_jct_s": round(float(ours.mean()), 1),
        "p50_jct_s": round(float(np.median(ours)), 1),
        "p99_jct_s": round(float(tail), 1),
        "makespan_s": round(float(np.mean([makespan_s(schedule) for schedule in schedules]))),
        "restarts_per_job": round(float(np.mean(restarts)), 2),
        "beside_avg_s": round(float(theirs.mean()), 1),
        "beside_p99_s": round(float(their_tail), 1),
        "beside_makespan_s": round(float(np.mean([times.makespan_s for times in beside]))),
        **{name: round(value, 4) for name, value in difference(theirs, ours).items() if name != "sooner"},
        "p99_ratio": round(float(tail / their_tail), 4),
    }


def fairness_of(ratios: Sequence[Mapping[str, float]]) -> dict[str, object]:
    """The worst job, and the share of jobs that lost by sharing."""
    values = [value for workload in ratios for value in workload.values()]
    return {"worst_ftf": round(max(values), 3), "unfair_share": round(float(np.mean([value > 1 for value in values])), 4)}


def makespan_s(schedule: ClusterSchedule) -> float:
    """From the first arrival to the last end."""
    return max(o.end_s for o in schedule.outcomes) - min(o.job.arrival_s for o in schedule.outcomes)


if __name__ == "__main__":
    main()
