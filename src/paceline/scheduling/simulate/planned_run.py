"""Run of a job with a chosen or stated strategy, at the strategy's predicted speed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.speeds.best_strategy import BestStrategies, BestStrategy
from paceline.scheduling.state import Outlook


class PlannedRun:
    """Run of a job whose progress counts in steps of its fixed batch, with known remaining work.

    Args:
        steps: work.
        strategies: best strategies on each device type it may use.
        spread: half the 80 % range of its steps, relative to the step, as policies see it; 0: they know the truth.
    """

    def __init__(
        self, job: Job, steps: float, strategies: Mapping[str, BestStrategies], fleet: Fleet, spread: float = 0.0
    ) -> None:
        self.job = job
        self.to_next = steps
        self.speed = 0.0
        self.finished = False
        self.batch = job.batch
        self.strategy = ""
        self._strategies, self._fleet, self._spread = strategies, fleet, spread
        self._tables: dict[tuple[int, int], Array] = {}
        for index, group in enumerate(fleet.groups):  # search now, so that decisions stay fast
            self.goodput(index, min(self.max_devices(), group.devices))

    @property
    def outlook(self) -> Outlook:
        """Expected speed as policies see it; see ``JobRun``."""
        return self

    def _sizes(self, device: str, most: int) -> list[int]:
        """Return the numbers of devices that have a strategy, ascending. A rigid job has one."""
        if "devices" not in self.job.adapts:
            return [self.job.devices] if self.job.devices <= most else []
        own = {*self._strategies[device].sizes, self.job.devices, self.job.min_devices}
        return sorted(size for size in own if self.job.min_devices <= size <= most)

    def goodput(self, device_type: int, most: int) -> Array:
        """Return steps a second; 0 if no strategy fits."""
        key = device_type, most
        if key not in self._tables:
            self._tables[key] = self._table(self._fleet.groups[device_type].device, most)
        return self._tables[key]

    def _table(self, device: str, most: int) -> Array:
        table = np.zeros(most + 1)
        for size in self._sizes(device, most) if device in self._strategies else ():
            if best := self._strategies[device].on(size):
                table[size:] = 1 / best.step_s
        return table

    def seconds_left(self, device_type: int, most: int) -> Array:
        """Return the seconds to the end by number of devices; see ``Outlook``."""
        with np.errstate(divide="ignore"):
            return self.to_next / self.goodput(device_type, most)

    def max_devices(self) -> int:
        """Return the largest number of devices with a known speed; see ``Outlook``."""
        if "devices" not in self.job.adapts:
            return self.job.devices
        most = max(group.devices for group in self._fleet.groups if group.device in self._strategies)
        return min(most, self.job.max_devices or most)

    def relative_spread(self) -> float:
        """Return the relative spread of the goodput; see ``Outlook``."""
        return self._spread

    def place(self, device: str, shape: tuple[int, ...], crossed: int = 0) -> None:
        """Place the job on devices; see ``JobRun``."""
        best = self._placed(device, shape, crossed) if shape else None
        self.speed, self.strategy = (1 / best.step_s, best.text) if best else (0.0, "")

    def _placed(self, device: str, shape: tuple[int, ...], crossed: int) -> BestStrategy | None:
        """Return the strategy of the largest size that the devices allow, on the fullest nodes."""
        held = np.sort(shape)[::-1].cumsum()
        for size in reversed(self._sizes(device, int(held[-1]))):
            nodes = int(np.searchsorted(held, size)) + 1
            if best := self._strategies[device].on(size, nodes, min(crossed, nodes)) or self._strategies[device].on(size):
                return best
        return None

    def cross(self) -> None:
        """Continue after ``to_next`` has reached 0; see ``JobRun``."""
        self.finished = True

    def refresh(self) -> None:
        """Do nothing, because there is nothing to learn."""

    def goes_to(self, left: float) -> None:
        """Set the remainder of ``to_next``; see ``JobRun``."""
        self.to_next = left
