"""Predicted ends of live jobs: the simulator, started from the present state with the expected speeds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.live.journal import LiveRow
from paceline.scheduling.live.policy import Outlooks, core_job
from paceline.scheduling.live.runner import Snapshot
from paceline.scheduling.policies.registry import configured, policy_named
from paceline.scheduling.queues.queues_file import Settings
from paceline.scheduling.simulate.run import SteadyRun
from paceline.scheduling.simulate.schedule import ClusterSchedule, ClusterSettings
from paceline.scheduling.simulate.simulated import SimulatedSchedule
from paceline.scheduling.simulate.simulator import simulate
from paceline.scheduling.state import Outlook

MOST_S = 20.0
"""Most seconds of this machine for a forecast, because jobs wait for it."""


class ForecastRun(SteadyRun):
    """A job that runs at its expected speed until its remaining work is done.

    Args:
        work: remaining work.
        factor: true speed / expected speed.
    """

    strategy = ""

    def __init__(self, outlook: Outlook, work: float, fleet: Fleet, batch: int = 0, factor: float = 1.0) -> None:
        self.to_next, self.speed, self.finished, self.batch = work, 0.0, False, batch
        self._outlook, self._fleet, self._factor = outlook, fleet, factor

    @property
    def outlook(self) -> Outlook:
        """Return the outlook of the job; see ``JobRun``."""
        return self

    def goodput(self, device_type: int, most: int) -> Array:
        """Return progress a second by number of devices; see ``Outlook``."""
        return self._outlook.goodput(device_type, most)

    def max_devices(self) -> int:
        """Largest legal number of devices; see ``Outlook``."""
        return self._outlook.max_devices()

    def seconds_left(self, device_type: int, most: int) -> Array:
        """Return the seconds to the end; see ``Outlook``."""
        with np.errstate(divide="ignore"):
            return self.to_next / self.goodput(device_type, most)

    def relative_spread(self) -> float:
        """Relative spread of the speed; see ``Outlook``."""
        return self._outlook.relative_spread()

    def place(self, device: str, shape: tuple[int, ...], crossed: int = 0) -> None:
        """Place the job on devices; see ``JobRun``."""
        held = sum(shape)
        self.speed = self._factor * float(self.goodput(self._fleet.types.index(device), held)[held]) if held else 0.0

    def cross(self) -> None:
        """End the job, because its remaining work is done."""
        self.finished = True


def work_left(outlook: Outlook, fleet: Fleet) -> float:
    """Remaining work in the unit of the goodput; NaN if unknown."""
    most = outlook.max_devices()
    for index in range(len(fleet.groups)):
        speed, seconds = outlook.goodput(index, most), outlook.seconds_left(index, most)
        if (runs := np.flatnonzero(speed > 0)).size:
            return float(speed[runs[0]] * seconds[runs[0]])
    return math.nan


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicted ends of jobs.

    Attributes:
        simulated: schedule, in seconds after ``start_s``.
        start_s: seconds of the epoch: now, or the first arrival if that is later.
        last_s: last end as expected, and with all speeds at the upper and at the lower end of their 80 % range; NaN: the
            policy turns all jobs away.
    """

    simulated: SimulatedSchedule
    start_s: float
    last_s: tuple[float, float, float]


def forecast(
    rows: Sequence[LiveRow],
    live: Snapshot,
    policy: str,
    fleet: Fleet,
    outlooks: Outlooks,
    settings: ClusterSettings,
    queues: Settings | None = None,
) -> Forecast | None:
    """Predict the schedule of jobs that are not over, from now on.

    Args:
        rows: jobs that are not over, and jobs that arrive later.
        live: present state. Reports of its ``past`` jobs count.
        policy: name of the policy. ``queues``: settings of the cluster's scheduler, for its own policy.

    Returns:
        The forecast; None if the speed or the work of a job is unknown.

    Raises:
        UserError: jobs never end under the policy, or the simulation takes more than ``MOST_S`` of this machine.
    """
    beliefs = outlooks(replace(live, rows=rows), fleet)
    works = [work_left(outlook, fleet) for outlook in beliefs]
    if not rows or not all(math.isfinite(work) for work in works):
        return None
    start_s = max(live.now_s, min(row.arrival_s for row in rows))
    jobs = [_forecast_job(row, start_s) for row in rows]
    entry, decide = policy_named(policy), configured(policy, queues)

    def simulated(side: int) -> ClusterSchedule:
        runs = {
            job.name: ForecastRun(outlook, max(work, 1e-9), fleet, job.batch, (1 + outlook.relative_spread()) ** side)
            for job, outlook, work in zip(jobs, beliefs, works, strict=True)
        }
        with np.errstate(all="ignore"):
            return simulate(jobs, fleet, decide, lambda job: runs[job.name], settings, _limit(began))

    began = time.monotonic()
    schedule = simulated(0)
    ends = [_last(schedule)]
    for side in (1, -1):
        spread = any(outlook.relative_spread() for outlook in beliefs)
        ends.append(_last(simulated(side)) if spread else ends[0])
    notes = ("Simulated before these jobs ran, with predicted speeds.",)
    answer = SimulatedSchedule(
        policy=policy, schedule=schedule, settings=settings, adapts=entry.adapts, knowledge="predicted", notes=notes
    )
    return Forecast(answer, start_s, (ends[0], ends[1], ends[2]))


def _last(schedule: ClusterSchedule) -> float:
    """Return the last end of the jobs that end; NaN if no job ends."""
    return max((outcome.end_s for outcome in schedule.outcomes if math.isfinite(outcome.end_s)), default=math.nan)


def _limit(began: float) -> Callable[[float, int], None]:
    """Return a progress callback that ends a simulation after ``MOST_S``."""

    def check(moment_s: float, ended: int) -> None:
        if time.monotonic() - began > MOST_S:
            raise UserError(f"the simulation of these jobs takes more than {MOST_S:g} s")

    return check


def _forecast_job(row: LiveRow, start_s: float) -> Job:
    """Convert the job to the time of the forecast. A deadline in the past no longer counts."""
    job = core_job(replace(row, arrival_s=max(row.arrival_s, start_s)), start_s)
    due_s = row.arrival_s + row.launch.job.deadline_s - start_s
    return replace(job, deadline_s=due_s if due_s > job.arrival_s else math.inf)
