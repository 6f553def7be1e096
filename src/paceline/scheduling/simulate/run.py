"""Run of a job in the simulator: its true speed on its devices, and the times at which it changes."""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.job import Job
from paceline.scheduling.state import Outlook


class JobRun(Protocol):
    """Interface of a job in the simulator. It reduces ``to_next`` by ``speed`` and calls ``cross`` at 0.

    Attributes:
        speed: progress a second on the devices it holds.
        to_next: progress until something changes, such as an epoch.
        finished: True if all work is done.
        batch: samples a step over all devices; 0: unknown.
        strategy: strategy that it runs with, in words; empty: unknown.
    """

    speed: float
    to_next: float
    finished: bool
    batch: int
    strategy: str

    @property
    def outlook(self) -> Outlook:
        """Expected speed as policies see it."""
        ...

    def place(self, device: str, shape: tuple[int, ...], crossed: int = 0) -> None:
        """Give the job these devices of each node; none makes it wait.

        ``crossed``: as ``Fleet.crossed``.
        """
        ...

    def cross(self) -> None:
        """Continue after ``to_next`` has reached 0."""
        ...

    def refresh(self) -> None:
        """Begin a round, in which the run learns from the last one and may choose another batch."""
        ...

    def goes_to(self, left: float) -> None:
        """Set the rest of ``to_next``. The simulator calls this before any other method."""
        ...


@runtime_checkable
class Reports(Protocol):
    """Run that reports a learning metric."""

    def curve(self) -> Array:
        """Reported values, oldest first. Higher is better, so losses are negative."""
        ...


class SteadyRun:
    """Run that learns nothing: its goodput never changes, and its speed is constant between two events.

    Its outlook knows the seconds to the end as ``to_next`` over the goodput, or not at all.
    """

    to_next: float

    def refresh(self) -> None:
        """Do nothing, because there is nothing to learn."""

    def goes_to(self, left: float) -> None:
        """Set the rest of ``to_next``; see ``JobRun``."""
        self.to_next = left


class DurationRun(SteadyRun):
    """Run of a rigid job with only a known duration."""

    def __init__(self, job: Job, durations_known: bool = False, left_s: float | None = None) -> None:
        """Create the run of a job. ``left_s``: seconds left of a job that already runs; None: all."""
        self.job = job
        self.to_next = job.duration_s if left_s is None else left_s
        self.speed = 0.0
        self.finished = False
        self.batch, self.strategy = job.batch, job.strategy
        self._known = durations_known

    @property
    def outlook(self) -> Outlook:
        """Expected speed as policies see it; see ``JobRun``."""
        return self

    def goodput(self, device_type: int, most: int) -> Array:
        """Return the progress a second by number of devices; see ``Outlook``."""
        table = np.zeros(most + 1)
        table[self.job.devices : self.job.devices + 1] = 1.0
        return table

    def seconds_left(self, device_type: int, most: int) -> Array:
        """Return the seconds to the end by number of devices; see ``Outlook``."""
        left = self.to_next if self._known else math.nan
        return np.where(self.goodput(device_type, most) > 0, left, math.inf)

    def max_devices(self) -> int:
        """Return the largest number of devices with a known speed; see ``Outlook``."""
        return self.job.devices

    def relative_spread(self) -> float:
        """Return the relative spread of the goodput; see ``Outlook``."""
        return 0.0

    def place(self, device: str, shape: tuple[int, ...], crossed: int = 0) -> None:
        """Place the job on devices; see ``JobRun``."""
        self.speed = 1.0 if shape else 0.0

    def cross(self) -> None:
        """Continue after ``to_next`` has reached 0; see ``JobRun``."""
        self.finished = True
