"""A job whose speed was measured on some numbers of devices: steps a second, wherever they are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.run import SteadyRun
from paceline.scheduling.state import Outlook


class TabledRun(SteadyRun):
    """Its work is ``job.steps``. It runs on the numbers of devices of its table alone; nothing between them is assumed.

    Args:
        speeds: of each device type, in the fleet's order: devices -> steps a second.

    Raises:
        UserError: no steps; no number of devices that its owner allows was measured.
    """

    def __init__(self, job: Job, types: tuple[str, ...], speeds: Mapping[str, Mapping[int, float]]) -> None:
        if not job.steps:
            raise UserError(f"job {job.name!r} states no steps", "its table of speeds counts in steps")
        self.job = job
        self.to_next = job.steps
        self.speed = 0.0
        self.finished = False
        self.batch, self.strategy = job.batch, job.strategy
        self._types = types
        self._speeds = {name: self._legal(table) for name, table in speeds.items() if job.may_use(name)}
        self._most = max((max(table, default=0) for table in self._speeds.values()), default=0)
        self._dense: dict[tuple[int, int], Array] = {}
        if not self._most:
            raise UserError(f"job {job.name!r}: its speed was not measured on devices that it may use")

    def _legal(self, table: Mapping[int, float]) -> dict[int, float]:
        least, most = self.job.min_devices, self.job.max_devices or max(table)
        if "devices" not in self.job.adapts:
            least = most = self.job.devices
        return {devices: speed for devices, speed in table.items() if least <= devices <= most}

    @property
    def outlook(self) -> Outlook:
        """What a policy may believe: the truth."""
        return self

    def goodput(self, device_type: int, most: int) -> Array:
        """Steps a second; 0 on what was not measured."""
        key = (device_type, most)
        if key not in self._dense:
            dense = np.zeros(most + 1)
            for devices, speed in self._speeds.get(self._types[device_type], {}).items():
                if devices <= most:
                    dense[devices] = speed
            self._dense[key] = dense
        return self._dense[key]

    def seconds_left(self, device_type: int, most: int) -> Array:
        """Exact."""
        with np.errstate(divide="ignore"):
            return self.to_next / self.goodput(device_type, most)

    def max_devices(self) -> int:
        """The largest number that was measured and is allowed."""
        return self._most

    def relative_spread(self) -> float:
        """It was measured."""
        return 0.0

    def place(self, device: str, shape: tuple[int, ...], crossed: int = 0) -> None:
        """As ``Run``."""
        self.speed = self._speeds[device].get(sum(shape), 0.0) if shape else 0.0

    def cross(self) -> None:
        """All steps are done."""
        self.finished = True


__all__ = ["TabledRun"]
