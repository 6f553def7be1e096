"""A rigid job whose steps a second are known by device type and number of devices: the truth of Gavel's simulator."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.run import DurationRun

Throughputs = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Model -> device -> devices -> steps a second."""


class ThroughputRun(DurationRun):
    """One job; its progress counts in steps, and the work left is known. Where its devices are makes no difference.

    Raises:
        UserError: no throughput of its model on the devices it asks for; no steps.
    """

    def __init__(self, job: Job, throughputs: Throughputs, fleet: Fleet) -> None:
        super().__init__(job, durations_known=True)
        table = throughputs.get(job.model, {})
        self._steps_per_s = {name: table.get(name, {}).get(job.devices, 0.0) for name in fleet.types}
        if not any(self._steps_per_s.values()):
            asked = f"{job.devices} device{'s' * (job.devices > 1)}"
            raise UserError(
                f"job {job.name!r}: no throughput of {job.model!r} on {asked} of {', '.join(fleet.types)}",
                "give a file that has it, or other devices",
            )
        if not job.steps:
            raise UserError(f"job {job.name!r}: no steps", "a job with throughputs states its steps")
        self.to_next = job.steps
        self._types = fleet.types
        self._tables: dict[tuple[int, int], Array] = {}

    def goodput(self, device_type: int, most: int) -> Array:
        """Steps a second; only the devices asked for are known."""
        key = device_type, most
        if key not in self._tables:
            self._tables[key] = super().goodput(device_type, most) * self._steps_per_s[self._types[device_type]]
        return self._tables[key]

    def seconds_left(self, device_type: int, most: int) -> Array:
        """Seconds to the end; infinite where it cannot run."""
        with np.errstate(divide="ignore"):
            return self.to_next / self.goodput(device_type, most)

    def place(self, device: str, shape: tuple[int, ...], crossed: int = 0) -> None:
        """It goes at the table's speed."""
        self.speed = self._steps_per_s[device] if shape else 0.0


__all__ = ["ThroughputRun", "Throughputs"]
