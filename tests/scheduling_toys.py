"""Small jobs, clusters and profiles, made up for the tests of scheduling, and an audit of a whole schedule."""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from elasticflow_setting import TabledRun

from paceline.scheduling.fleet import Fleet, NodeGroup
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.run import DurationRun, JobRun
from paceline.scheduling.simulate.schedule import ClusterSchedule, ClusterSettings
from paceline.scheduling.simulate.simulator import simulate
from paceline.scheduling.speeds.predicted_speed import PredictedSpeed
from paceline.scheduling.speeds.profiles import EPOCH_COLUMNS, EPOCH_FILE, STEP_COLUMNS, STEP_FILE, ModelProfile, read_profiles
from paceline.scheduling.state import Policy, State

SMALL = Fleet((NodeGroup.of("T4", 2, 4, price=0.5),))
"""Eight devices."""
FREE = ClusterSettings(round_s=0.0, restart_s=0.0)
"""A decision at every event, and starts that cost nothing: closed forms hold."""


def rigid(name: str, duration_s: float, devices: int = 1, arrival_s: float = 0.0, **also: Any) -> Job:
    return Job(name=name, duration_s=duration_s, devices=devices, arrival_s=arrival_s, **also)


def elastic(name: str, steps: float, arrival_s: float = 0.0, **also: Any) -> Job:
    return Job(name=name, steps=steps, arrival_s=arrival_s, adapts=frozenset({"devices"}), **also)


def runs(fleet: Fleet, exponent: float = 0.8, most: int = 64) -> Callable[[Job], JobRun]:
    """Rigid jobs of known durations; elastic ones that make n^exponent steps a second on n devices of any type."""
    table = {devices: devices**exponent for devices in range(1, min(fleet.devices, most) + 1)}

    def run(job: Job) -> JobRun:
        if job.steps:
            return TabledRun(job, fleet.types, dict.fromkeys(fleet.types, table))
        return DurationRun(job, durations_known=True)

    return run


def simulated(
    jobs: Sequence[Job], policy: Policy, fleet: Fleet = SMALL, settings: ClusterSettings = FREE, **how: Any
) -> ClusterSchedule:
    return simulate(jobs, fleet, policy, runs(fleet, **how), settings)


def ends(schedule: ClusterSchedule) -> dict[str, float]:
    return {outcome.job.name: outcome.end_s for outcome in schedule.outcomes}


def state(jobs: Sequence[Job], fleet: Fleet = SMALL, time_s: float = 0.0, **also: Any) -> State:
    """Jobs that wait, unless ``also`` says what they hold; see ``State``."""
    count = len(jobs)
    make = runs(fleet)
    usual: dict[str, Any] = {
        "round_s": 0.0,
        "capacity": np.array([group.devices for group in fleet.groups]),
        "arrival_s": np.array([job.arrival_s for job in jobs]),
        "requested": np.array([job.devices for job in jobs], np.int64),
        "devices": np.zeros(count, np.int64),
        "type_index": np.full(count, -1),
        "attained_s": np.zeros(count),
        "run_s": np.zeros((count, len(fleet.groups))),
        "restarts": np.zeros(count, np.int64),
        "outlooks": [make(job).outlook for job in jobs],
    }
    return State(time_s=time_s, fleet=fleet, jobs=jobs, **{**usual, **also})


@st.composite
def many_jobs(draw: st.DrawFn, most: int = 8, devices: int = 8, deadlines: bool = False) -> list[Job]:
    """Rigid and elastic jobs; several may come at one time."""
    jobs: list[Job] = []
    for index in range(draw(st.integers(1, most))):
        arrival, work = float(draw(st.integers(0, 20)) * 30), float(draw(st.integers(1, 900)))
        due = {"deadline_s": arrival + draw(st.integers(1, 2000))} if deadlines and draw(st.booleans()) else {}
        if draw(st.booleans()):
            jobs.append(rigid(f"job {index}", work, draw(st.integers(1, devices)), arrival, **due))
        else:
            jobs.append(elastic(f"job {index}", work, arrival, devices=draw(st.integers(1, devices)), **due))
    return jobs


def audit(schedule: ClusterSchedule, jobs: Sequence[Job], removes: bool = False) -> None:
    """No job is lost or doubled, none is in two places, and no node gives more than it has or while it is away.

    Args:
        removes: whether the policy may turn jobs away.
    """
    assert sorted(outcome.job.name for outcome in schedule.outcomes) == sorted(job.name for job in jobs)
    changes: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for outcome in schedule.outcomes:
        assert outcome.removed if removes and np.isnan(outcome.end_s) else outcome.end_s >= outcome.job.arrival_s
        before = outcome.job.arrival_s
        for span in outcome.spans:
            assert before <= span.start_s <= span.end_s
            before = span.end_s
            for node, count in span.placement:
                assert count > 0
                changes[node] += [(span.start_s, count), (span.end_s, -count)]
                for outage in schedule.fleet.outages:
                    away = outage.node == node and span.start_s < outage.end_s and outage.start_s < span.end_s
                    assert not away, f"{outcome.job.name} on node {node}, which is away"
    for node, moments in changes.items():
        used = np.cumsum([count for _, count in sorted(moments)])  # at one moment, what is freed counts first
        assert used.max() <= schedule.fleet.node_devices[node]
        assert used[-1] == 0


def write_profiles(folder: Path, model: str = "toy", epochs: int = 3) -> Path:
    """Files of one model on T4: a step of m samples takes (20 + m) ms, its exchange 2 ms a device beyond the first (10 between
    nodes); the noise grows with the epochs."""
    with (folder / STEP_FILE).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(STEP_COLUMNS)
        for placement in ("1", "2", "3", "4", "44", "34"):
            nodes, devices = len(placement), sum(map(int, placement))
            exchange = 0.002 * (devices - 1) if nodes == 1 else 0.01 * (devices - 1)
            for local in (8, 16, 32, 64):
                row = ("aws", model, placement, nodes, devices, local, 0.02 + 0.001 * local + exchange, exchange)
                writer.writerow(row)
    with (folder / EPOCH_FILE).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(EPOCH_COLUMNS)
        for batch in (32, 512):
            for epoch in range(epochs):
                gain = 1.0 if batch == 32 else 8.0
                row = (
                    batch,
                    epoch,
                    100.0 * (epoch + 1),
                    100.0 * (epoch + 1) / gain,
                    0.5 + 0.1 * epoch,
                    1.0,
                    15.0 * (epoch + 1),
                )
                writer.writerow((model, *row))
    return folder


def profile(folder: Path) -> ModelProfile:
    return read_profiles(write_profiles(folder))["toy"]


def predicted(most: int, per_node: int = 4) -> PredictedSpeed:
    """A made-up surface: 10 ms a sample, 20 ms of exchange within a node and 70 ms between nodes; half the range is 0.4."""
    sizes, local = np.array([1.0, 2, 4, 8, 16]), np.array([8.0, 64.0])
    steps = 0.01 * local + 0.02 * (sizes[:, None] > 1) + 0.05 * (sizes[:, None] > 4)
    group = NodeGroup.of("T4", most // per_node, per_node, "25Gb/s")
    return PredictedSpeed(group, local, sizes, steps, steps + 0.03, relative_spread=0.4)
