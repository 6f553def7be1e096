"""A small cluster and rigid jobs whose schedules can be told by hand."""

from __future__ import annotations

from pathlib import Path

from paceline.scheduling.fleet import Fleet, NodeGroup
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.scenario import Scenario
from paceline.scheduling.simulate.schedule import ClusterSettings
from paceline.scheduling.simulate.simulated import SimulatedSchedule

ROOT = Path(__file__).parents[1]
TRACE = ROOT / "examples" / "jobs.csv"
FOUR = Fleet((NodeGroup.of("T4", 2, 2, price=1.0, watts=100.0),))
AT_ONCE = ClusterSettings(round_s=0.0, restart_s=0.0)


def job(name: str, arrival_s: float, devices: int, duration_s: float) -> Job:
    return Job(name=name, arrival_s=float(arrival_s), devices=devices, duration_s=float(duration_s))


JOBS = (job("a", 0, 4, 100), job("b", 10, 2, 50), job("c", 20, 2, 100))
"""Under fifo on four devices: a from 0 to 100, b from 100 to 150, c from 100 to 200."""


def simulated(*jobs: Job, policy: str = "fifo", fleet: Fleet = FOUR, settings: ClusterSettings = AT_ONCE) -> SimulatedSchedule:
    return Scenario(jobs=jobs or JOBS, fleet=fleet, settings=settings).run(policy)
