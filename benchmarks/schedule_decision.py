"""How long a policy takes to decide for 1,000 jobs on 2,000 devices, and Philly's 82,247 jobs to simulate, on one core.

``--jobs 2000 --nodes 2500`` is 2,000 jobs on 10,000 devices.

    OMP_NUM_THREADS=1 python benchmarks/schedule_decision.py --out RESULTS/schedule_decision.csv --philly philly.csv

RESULTS is benchmarks/results. Decisions: 500 nodes of four, of one type and, for policies that tell types apart, of three. Half
of the jobs hold devices. Jobs are elastic where the policy allows it. Each decision is carried out, a round passes, three jobs
end and three come, and others for those that a policy turned away. ``outlooks``: what the policy sees of a job's speed.

- ``free``: goodput that grows as a power of the devices, so an outlook costs no time of its own.
- ``predicted``: goodput of Pollux's six networks as predicted, on up to as many devices as their batches allow, corrected by
  what all jobs reported in the round before. A job's noise changes with its epoch and its batch. What the tables cost counts
  to the decision; ``reports_s`` is what reading the reports cost before it, in the mean.

Philly: on 312 nodes of eight, where hardly a job waits, on 128, where jobs of 128 devices hold up the others, and on 64, where
a queue of hundreds forms; then its first 10,000 jobs on 2,000 devices. A round is 60 s. Seconds are of the processor, which
other work on the machine does not lengthen; ``wall_s`` is what the clock said.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pollux_setting
from rows import append

from paceline.array_types import Array
from paceline.scheduling.fleet import Fleet, NodeGroup
from paceline.scheduling.job import Job
from paceline.scheduling.policies.registry import POLICIES, PolicyEntry
from paceline.scheduling.simulate.profiled_run import ProfiledRun
from paceline.scheduling.speeds.predicted_jobs import Predictions, profiled_networks
from paceline.scheduling.speeds.profiles import EpochTable, ModelProfile, packed
from paceline.scheduling.state import Decision, State
from paceline.scheduling.verb import scenario

COLUMNS = (
    "what",
    "policy",
    "outlooks",
    "types",
    "jobs",
    "devices",
    "decisions",
    "median_s",
    "p99_s",
    "slowest_s",
    "total_s",
    "wall_s",
    "reports_s",
    "note",
)
TYPES = (("T4", 1.0), ("V100 SXM2 16GB", 2.5), ("A100 SXM 80GB", 5.0))
"""Device types and their speeds."""
BATCHES = {
    "cifar10": (128, 4096, 32, 1024),
    "imagenet": (200, 12800, 50, 200),
    "bert": (12, 384, 4, 12),
    "yolov3": (8, 512, 4, 8),
    "deepspeech2": (20, 640, 10, 80),
    "ncf": (256, 32768, 256, 32768),
}
"""First and largest batch, least and largest of a device: about those of Pollux's simulator."""
EPOCHS = 100
ROUND_S = 60.0
CHANGED = 3
PHILLY = (("312x8xP100", 0), ("128x8xP100", 0), ("64x8xP100", 0), ("250x8xP100", 10_000))
"""Clusters, and the number of jobs; 0: all."""


@dataclass(frozen=True)
class Toy:
    """Goodput that grows as a power of the devices, and seconds that are left at 1 a second."""

    devices: int
    elastic: bool
    power: float
    left_s: float

    def goodput(self, device_type: int, most: int) -> Array:
        """As ``Outlook``."""
        counts = np.arange(most + 1)
        table = TYPES[device_type][1] * counts**self.power
        return table if self.elastic else np.where(counts == self.devices, table, 0.0)

    def max_devices(self) -> int:
        """As ``Outlook``."""
        return 4 * self.devices if self.elastic else self.devices

    def seconds_left(self, device_type: int, most: int) -> Array:
        """As ``Outlook``."""
        with np.errstate(divide="ignore"):
            return self.left_s / self.goodput(device_type, most)

    def relative_spread(self) -> float:
        """As ``Outlook``."""
        return 0.1


def fleet_of(nodes: int, types: int) -> Fleet:
    """So many nodes of four, of one type or in equal parts of several."""
    parts = [nodes // types + (nodes % types if index == 0 else 0) for index in range(types)]
    groups = (
        NodeGroup.of(name, part, 4, "50Gb/s", price=speed, watts=300) for (name, speed), part in zip(TYPES, parts, strict=False)
    )
    return Fleet(tuple(groups))


class Cluster:
    """The state before each decision, and what follows from it."""

    def __init__(self, entry: PolicyEntry, jobs: int, nodes: int, types: int, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.reports_s: list[float] = []
        self.entry, self.fleet, self.made, self.time_s = entry, fleet_of(nodes, types), 0, 1e5
        self.first = jobs
        drawn = [self._job() for _ in range(jobs)]
        self.jobs, self.outlooks = [job for job, _ in drawn], [toy for _, toy in drawn]
        self.devices, self.types = np.zeros(jobs, np.int64), np.full(jobs, -1)
        self.run_s = self.random.exponential(5000, (jobs, types)) * (self.random.random((jobs, 1)) < 0.5)
        self.memory: object = None
        left = np.array([group.devices for group in self.fleet.groups])
        for index in range(jobs // 2):
            group = index % types
            if left[group] >= self.jobs[index].devices:
                left[group] -= self.jobs[index].devices
                self.devices[index], self.types[index] = self.jobs[index].devices, group

    def _job(self) -> tuple[Job, Any]:
        self.made += 1
        devices = int(self.random.choice([1, 1, 1, 2, 4, 8, 16]))
        duration_s = float(self.random.lognormal(8, 1.5))
        arrival_s = self.time_s - float(self.random.exponential(5000)) if self.made <= self.first else self.time_s
        job = Job(
            name=f"j{self.made}",
            arrival_s=max(arrival_s, 0.0),
            model="toy",
            devices=devices,
            batch=64 * devices,
            duration_s=duration_s,
            adapts=self.entry.adapts,
            deadline_s=self.time_s + 2 * duration_s,
            max_devices=4 * devices if "devices" in self.entry.adapts else 0,
        )
        return self._with_outlook(job)

    def _with_outlook(self, job: Job) -> tuple[Job, Any]:
        power = float(self.random.uniform(0.5, 0.95))
        return job, Toy(job.devices, "devices" in self.entry.adapts, power, job.duration_s)

    def state(self) -> State:
        """What the policy sees now."""
        order = np.argsort([job.arrival_s for job in self.jobs], kind="stable").tolist()
        self.jobs, self.outlooks = [self.jobs[i] for i in order], [self.outlooks[i] for i in order]
        self.devices, self.types, self.run_s = self.devices[order], self.types[order], self.run_s[order]
        requested = np.array([job.devices for job in self.jobs])
        return State(
            time_s=self.time_s,
            round_s=ROUND_S,
            fleet=self.fleet,
            capacity=np.array([group.devices for group in self.fleet.groups]),
            jobs=self.jobs,
            arrival_s=np.array([job.arrival_s for job in self.jobs]),
            requested=requested,
            devices=self.devices.copy(),
            type_index=np.where(self.devices > 0, self.types, -1),
            attained_s=self.run_s.sum(axis=1) * requested,
            run_s=self.run_s,
            restarts=(self.run_s.sum(axis=1) > 0).astype(np.int64),
            outlooks=self.outlooks,
            memory=self.memory,
        )

    def carry_out(self, decision: Decision) -> None:
        """A round passes; some jobs end and as many come."""
        held = np.bincount(
            decision.type_index[decision.devices > 0], decision.devices[decision.devices > 0], len(self.fleet.groups)
        )
        assert all(held <= [group.devices for group in self.fleet.groups]), "more devices than there are"
        self.devices, self.types = decision.devices.copy(), np.where(decision.devices > 0, decision.type_index, -1)
        self.memory = decision.memory
        self.time_s += ROUND_S
        running = np.flatnonzero(self.devices)
        self.run_s[running, self.types[running]] += ROUND_S
        self._work()
        for index in sorted({*running[:CHANGED].tolist(), *decision.removed}):
            self.jobs[index], self.outlooks[index] = self._job()
            self.devices[index], self.types[index], self.run_s[index] = 0, -1, 0.0

    def _work(self) -> None:
        """The jobs that hold devices get on by a round."""
        self.outlooks = [
            replace(toy, left_s=max(toy.left_s - ROUND_S, 1.0)) if devices else toy
            for toy, devices in zip(self.outlooks, self.devices.tolist(), strict=True)
        ]


class PredictedCluster(Cluster):
    """Jobs whose outlooks are predicted. Their true steps are those of other constants, so that reports correct predictions."""

    def __init__(self, entry: PolicyEntry, jobs: int, nodes: int, types: int, seed: int = 0) -> None:
        fleet = fleet_of(nodes, types)
        self.predictions, self.truth = pollux_setting.predictions(fleet), Predictions(fleet, networks=profiled_networks())
        self.profiles = {model: self._profile(model, fleet) for model in BATCHES}
        self.pool = self.predictions.pool(self.profiles)
        super().__init__(entry, jobs, nodes, types, seed)
        self._work()  # what half of the jobs saw of themselves is reported

    def _profile(self, model: str, fleet: Fleet) -> ModelProfile:
        """True steps, and noise that grows from a tenth of the first batch to a hundred times as much."""
        first, most, local_least, local_most = BATCHES[model]
        speeds = {group.device: self.truth.surface(model, group, local_least, local_most) for group in fleet.groups}
        batches = np.geomspace(first, most, 6).astype(np.int64)
        ones = np.ones((len(batches), EPOCHS))
        steps = np.cumsum(300.0 * ones, axis=1)
        variance = np.geomspace(0.1, 10.0, EPOCHS) * np.linspace(1.0, 1.2, len(batches))[:, None]
        return ModelProfile(model, speeds, EpochTable(batches, steps, steps, math.nan * ones, ones, variance))

    def _with_outlook(self, job: Job) -> tuple[Job, Any]:
        model = list(BATCHES)[int(self.random.integers(len(BATCHES)))]
        profile, adapts = self.profiles[model], "batch" in job.adapts
        first, most, least, _ = BATCHES[model]
        devices = min(job.devices, most // least)
        stated = replace(job, model=model, devices=devices, batch=max(first, devices * least), max_devices=0)
        outlook = ProfiledRun(stated, profile, self.fleet, adapts_batch=adapts, beliefs=self.pool.of(model))
        epoch = int(self.random.integers(EPOCHS - 1))
        outlook.epoch = epoch
        seconds = float(outlook.seconds_left(0, devices)[devices])
        return replace(stated, deadline_s=self.time_s + 2 * seconds), outlook

    def _work(self) -> None:
        spent = time.process_time()
        for run, devices, group in zip(self.outlooks, self.devices.tolist(), self.types.tolist(), strict=True):
            run.place(TYPES[group][0], packed(devices, 4)) if devices else run.place("", ())
            run.refresh()
            left = run.to_next - run.speed * ROUND_S
            while left <= 0 and run.epoch < EPOCHS - 1:
                run.cross()
                left += run.to_next
            run.goes_to(max(left, 1.0))
        self.reports_s.append(time.process_time() - spent)


def decide(policy: str, outlooks: str, types: int, jobs: int, nodes: int, decisions: int) -> dict[str, object]:
    """A row: the seconds of so many decisions in turn, the first one apart from them."""
    cluster = OUTLOOKS[outlooks](POLICIES[policy], jobs, nodes, types)
    seconds, wall = [], []
    for _ in range(decisions + 1):
        state = cluster.state()
        begun, spent = time.perf_counter(), time.process_time()
        decision = POLICIES[policy].decide(state)
        seconds.append(time.process_time() - spent)
        wall.append(time.perf_counter() - begun)
        cluster.carry_out(decision)
    seconds, wall = seconds[1:], wall[1:]  # the first loads what the policy imports
    return {
        "what": "decision",
        "policy": policy,
        "outlooks": outlooks,
        "types": types,
        "jobs": jobs,
        "devices": cluster.fleet.devices,
        "decisions": decisions,
        "median_s": f"{statistics.median(seconds):.3g}",
        "p99_s": f"{np.percentile(seconds, 99):.3g}",
        "slowest_s": f"{max(seconds):.3g}",
        "total_s": f"{sum(seconds):.3g}",
        "wall_s": f"{sum(wall):.3g}",
        "reports_s": f"{statistics.mean(cluster.reports_s):.3g}" if cluster.reports_s else "",
    }


OUTLOOKS: Mapping[str, type[Cluster]] = {"free": Cluster, "predicted": PredictedCluster}


def simulate(policy: str, trace: Path, cluster: str, most: int) -> dict[str, object]:
    """A row: the seconds of a whole simulation, reading apart."""
    question = scenario(trace, cluster)
    question = replace(question, jobs=question.jobs[: most or None])
    begun, spent = time.perf_counter(), time.process_time()
    simulated = question.run(policy)
    total, wall = time.process_time() - spent, time.perf_counter() - begun
    m = simulated.metrics
    return {
        "what": "simulation",
        "policy": policy,
        "types": 1,
        "jobs": m.jobs,
        "devices": question.fleet.devices,
        "decisions": m.decisions,
        "median_s": f"{m.decision_median_s:.3g}",
        "p99_s": f"{m.decision_p99_s:.3g}",
        "slowest_s": f"{max(simulated.schedule.decision_s):.3g}",
        "total_s": f"{total:.3g}",
        "wall_s": f"{wall:.3g}",
        "note": f"{m.utilisation:.0%} of devices held; mean wait {m.mean_wait_s:.0f} s",
    }


def main() -> None:
    """Measure and add rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--outlooks", nargs="+", choices=OUTLOOKS, default=list(OUTLOOKS))
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--decisions", type=int, default=30)
    parser.add_argument("--philly", type=Path, help="philly.csv; without it no simulation is timed")
    parser.add_argument("--only-philly", action="store_true")
    parser.add_argument("--simulated", nargs="+", choices=POLICIES, default=["fifo", "las", "paceline"])
    parser.add_argument("--clusters", nargs="+", default=[cluster for cluster, _ in PHILLY])
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for policy in () if options.only_philly else options.policies:
        for types in (1, len(TYPES)) if POLICIES[policy].types else (1,):
            for outlooks in options.outlooks:
                report(options.out, decide(policy, outlooks, types, options.jobs, options.nodes, options.decisions))
    for policy in options.simulated if options.philly else ():
        for cluster, most in PHILLY:
            if cluster in options.clusters:
                report(options.out, simulate(policy, options.philly, cluster, most))


def report(out: Path, row: dict[str, object]) -> None:
    """Add the row and print it."""
    append(out, COLUMNS, {**dict.fromkeys(COLUMNS, ""), **row})
    what = f"{row['what']:<10} {row['policy']:<12} {row.get('outlooks', ''):<9}"
    what += f" {row['types']} types, {row['jobs']:,} jobs, {row['devices']:,} devices"
    print(
        f"{what}: median {row['median_s']} s, p99 {row['p99_s']} s, in all {row['total_s']} s {row.get('note', '')}", flush=True
    )


if __name__ == "__main__":
    main()
