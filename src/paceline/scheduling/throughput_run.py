"""A rigid job whose steps a second are known by device type and number of devices: the truth of Gavel's simulator."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.state import Outlook

Throughputs = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Model -> device -> devices -> steps a second."""


class ThroughputRun:
    """One job; its progress counts in steps. Where its devices are makes no difference.

    Raises:
        UserError: no throughput of its model on the devices it asks for; no steps.
    """

    def __init__(self, job: Job, throughputs: Throughputs, fleet: Fleet) -> None:
        table = throughputs.get(job.model)
        self._steps_per_s = [table.get(name, {}).get(job.devices, 0.0) if table else 0.0 for name in fleet.types]
        if not any(self._steps_per_s):
            raise UserError(
                f"job {job.name!r}: no throughput of {job.model!r} on {job.devices} devices of {', '.join(fleet.types)}",
                "give a file that has it, or other devices",
            )
        if not job.steps:
            raise UserError(f"job {job.name!r}: no steps", "a job with throughputs states its steps")
        self.job, self._fleet = job, fleet
        self.to_next, self.speed, self.finished, self.batch = job.steps, 0.0, False, job.batch
        self._tables: dict[tuple[int, int], Array] = {}

    @property
    def outlook(self) -> Outlook:
        return self

    def goodput(self, device_type: int, most: int) -> Array:
        key = device_type, most
        if key not in self._tables:
            table = np.zeros(most + 1)
            table[self.job.devices : self.job.devices + 1] = self._steps_per_s[device_type]
            self._tables[key] = table
        return self._tables[key]

    def seconds_left(self, device_type: int, most: int) -> Array:
        with np.errstate(divide="ignore"):
            return self.to_next / self.goodput(device_type, most)

    def max_devices(self) -> int:
        return self.job.devices

    def relative_spread(self) -> float:
        return 0.0

    def place(self, device: str, shape: tuple[int, ...]) -> None:
        self.speed = self._steps_per_s[self._fleet.types.index(device)] if shape else 0.0

    def cross(self) -> None:
        self.finished = True

    def refresh(self) -> None:
        """Nothing is learned of it."""

    def goes_to(self, left: float) -> None:
        self.to_next = left


__all__ = ["ThroughputRun", "Throughputs"]
