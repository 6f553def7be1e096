"""What really happens to a job in the simulator: how fast it goes where it was put, and when that changes."""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.job import Job
from paceline.scheduling.state import Outlook


class JobRun(Protocol):
    """A job on its way. The simulator advances ``to_next`` by ``speed`` and calls ``cross`` where it reaches 0.

    Attributes:
        speed: progress a second on the devices it holds. ``to_next``: progress until something changes, such as an epoch.
        finished: whether all work is done.
        batch: samples a step over all devices; 0: unknown.
        strategy: that it runs with where it was put, in words; empty: unknown.
    """

    speed: float
    to_next: float
    finished: bool
    batch: int
    strategy: str

    @property
    def outlook(self) -> Outlook:
        """What a policy may believe of it."""
        ...

    def place(self, device: str, shape: tuple[int, ...], crossed: int = 0) -> None:
        """It now holds these devices of each node; none: it waits.

        ``crossed``: as ``Fleet.crossed``.
        """
        ...

    def cross(self) -> None:
        """``to_next`` was reached."""
        ...

    def refresh(self) -> None:
        """A round has begun: it may learn from the last one and choose another batch."""
        ...

    def goes_to(self, left: float) -> None:
        """The simulator tells how much of ``to_next`` is left before it asks anything of the run."""
        ...


@runtime_checkable
class Reports(Protocol):
    """A run that reports how well it learns."""

    def curve(self) -> Array:
        """What was reported so far, the oldest first; more is better, a loss is negative."""
        ...


class SteadyRun:
    """A run of which nothing is learned: between two events it goes on at one speed."""

    to_next: float

    def refresh(self) -> None:
        """Nothing is learned of it."""

    def goes_to(self, left: float) -> None:
        """As ``JobRun``."""
        self.to_next = left


class DurationRun(SteadyRun):
    """A rigid job of which only a duration is known."""

    def __init__(self, job: Job, durations_known: bool = False) -> None:
        self.job = job
        self.to_next = job.duration_s
        self.speed = 0.0
        self.finished = False
        self.batch, self.strategy = job.batch, job.strategy
        self._known = durations_known

    @property
    def outlook(self) -> Outlook:
        """As ``JobRun``."""
        return self

    def goodput(self, device_type: int, most: int) -> Array:
        """As ``Outlook``."""
        table = np.zeros(most + 1)
        table[self.job.devices : self.job.devices + 1] = 1.0
        return table

    def seconds_left(self, device_type: int, most: int) -> Array:
        """As ``Outlook``."""
        left = self.to_next if self._known else math.nan
        return np.where(self.goodput(device_type, most) > 0, left, math.inf)

    def max_devices(self) -> int:
        """As ``Outlook``."""
        return self.job.devices

    def relative_spread(self) -> float:
        """As ``Outlook``."""
        return 0.0

    def place(self, device: str, shape: tuple[int, ...], crossed: int = 0) -> None:
        """As ``JobRun``."""
        self.speed = 1.0 if shape else 0.0

    def cross(self) -> None:
        """As ``JobRun``."""
        self.finished = True


__all__ = ["DurationRun", "JobRun", "Reports", "SteadyRun"]
