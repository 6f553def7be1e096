"""Setting of ElasticFlow's simulator (ASPLOS 2023): jobs, table of measured speeds, and speed of a job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from paceline.array_types import Array
from paceline.csv_rows import Row, read
from paceline.errors import UserError
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.run import SteadyRun
from paceline.scheduling.state import Outlook
from paceline.scheduling.traces.published import ELASTICFLOW_COLUMNS, read_elasticflow

SPEED_COLUMNS = ("gpu_type", "model", "global_batch_size")
DEVICES: Mapping[str, str] = {"A100": "A100 SXM 40GB", "T4": "T4"}
"""Device of each type of the throughputs."""
SpeedTable = Mapping[int, float]
"""Steps a second by devices."""


def read_jobs(path: str | Path) -> list[Job]:
    """Jobs of a trace, in the order of the file. They may run on any number of devices; arrivals count from the first.

    Raises:
        UserError: a damaged row, with its column.
    """
    return list(read_elasticflow(read(path, ELASTICFLOW_COLUMNS)).jobs)


def read_speeds(path: str | Path) -> dict[tuple[str, str, int], dict[int, float]]:
    """Steps a second by (device, model, batch over all devices), then by devices; what was not measured is left out.

    Raises:
        UserError: a damaged row, with its column.
    """
    rows = read(path, SPEED_COLUMNS)
    sizes = [column for column in rows[0].values if column.isdecimal()]
    if not sizes:
        raise UserError(f"{Path(path).name} has no column for a number of devices", "name these columns 1, 2, 4 and so on")
    tables = {}
    for row in rows:
        batch, device = row.whole("global_batch_size"), DEVICES.get(row.text("gpu_type"), row.text("gpu_type"))
        if batch is None:
            raise row.wrong("global_batch_size", "a whole number above 0")
        speeds = {int(size): speed for size in sizes if (speed := _speed(row, size))}
        if not speeds:
            raise UserError(f"{row.place}: it has no speed", "give steps a second in a column named by the number of devices")
        tables[device, row.text("model"), batch] = speeds
    return tables


def _speed(row: Row, size: str) -> float | None:
    return None if row.text(size).lower() == "nan" else row.positive(size)


def speeds_of(job: Job, tables: Mapping[tuple[str, str, int], SpeedTable], device: str) -> SpeedTable:
    """The job's own. Raises UserError where its model and batch were not measured."""
    key = (device, job.model, job.batch)
    if key not in tables:
        raise UserError(
            f"job {job.name!r}: {job.model} of batch {job.batch} was not measured on {device}",
            "leave the job out, or add a row",
        )
    return tables[key]


class TabledRun(SteadyRun):
    """A job of ``job.steps`` steps that runs only on the numbers of devices of its table.

    Args:
        speeds: steps a second by devices, for each device type, in the fleet's order.

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
        """True speeds, which policies see."""
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


__all__ = ["DEVICES", "SpeedTable", "TabledRun", "read_jobs", "read_speeds", "speeds_of"]
