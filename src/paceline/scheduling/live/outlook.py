"""Expected speed of a live job, by its reports or by a prediction corrected by the reports of all jobs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.live.journal import LiveRow
from paceline.scheduling.speeds.goodput import StepSeconds


class ReportedOutlook:
    """Speed by the reports of the job alone. Sizes without a report count in proportion to their devices.

    Progress is in samples. Before the first report only ratios are meaningful: the speed on one device is 1.
    """

    def __init__(self, row: LiveRow) -> None:
        self._row, self._sizes = row, row.launch.sizes

    def goodput(self, device_type: int, most: int) -> Array:
        """Return samples a second on 0 to ``most`` devices. Between two legal sizes the smaller one counts."""
        table = np.zeros(most + 1)
        for size in self._sizes:
            table[size:] = self._speed(size)
        return table

    def _speed(self, size: int) -> float:
        return self._row.samples_per_s(size) if self._row.reports else float(size)

    def max_devices(self) -> int:
        """Largest legal size."""
        return self._sizes[-1]

    def seconds_left(self, device_type: int, most: int) -> Array:
        """Return the seconds by the stated duration or the remaining samples; NaN if unknown."""
        speed = self.goodput(device_type, most)
        if self._row.launch.job.duration_s:
            left_s = max(self._row.launch.job.duration_s - self._row.run_s, 0.0)
            return np.where(speed > 0, left_s, math.inf)
        left = self._row.launch.samples_left(self._row.progress) if self._row.reports else math.nan
        return np.where(speed > 0, left / np.where(speed > 0, speed, 1.0), math.inf)

    def relative_spread(self) -> float:
        """0 if the speed was reported or the duration stated, else inf."""
        return 0.0 if self._row.reports or self._row.launch.job.duration_s else math.inf


class PredictedOutlook:
    """Predicted steps of a job, corrected by the reports of all jobs. Progress is in samples.

    Args:
        times: steps of its network by device. It runs on these devices only.
        most: largest batch that fits a device, by device.
        samples_left: remaining work; NaN: unknown.
        spread: half the 80 % range of a step, relative to it; 0: measured.
    """

    def __init__(
        self,
        row: LiveRow,
        fleet: Fleet,
        times: Mapping[str, StepSeconds],
        most: Mapping[str, int],
        samples_left: float,
        spread: float,
    ) -> None:
        self.samples_left, self._most = samples_left, most
        self._sizes, self._batch = np.array(row.launch.sizes), row.launch.global_batch
        self._fleet, self._times, self._spread = fleet, times, spread
        self._tables: dict[int, Array] = {}

    def goodput(self, device_type: int, most: int) -> Array:
        """Return samples a second on 0 to ``most`` devices. Between two legal sizes the smaller one counts."""
        if device_type not in self._tables:
            self._tables[device_type] = self._speeds(device_type)
        steps = np.searchsorted(self._sizes, np.arange(most + 1), side="right")
        return np.asarray(np.concatenate([[0.0], self._tables[device_type]])[steps])

    def _speeds(self, device_type: int) -> Array:
        """Return samples a second on each legal size; 0 if the job cannot run there."""
        group = self._fleet.groups[device_type]
        if group.device not in self._times:
            return np.zeros(len(self._sizes))
        nodes = -(-self._sizes // group.devices_per_node)
        local = self._batch // self._sizes
        step_s, _ = self._times[group.device].step_s(nodes, self._sizes, local)
        runs = (self._sizes <= group.devices) & (local <= self._most[group.device])
        return np.where(runs, self._batch / step_s, 0.0)

    def max_devices(self) -> int:
        """Largest legal size."""
        return int(self._sizes[-1])

    def seconds_left(self, device_type: int, most: int) -> Array:
        """Return the seconds by the remaining samples; NaN if unknown."""
        speed = self.goodput(device_type, most)
        return np.where(speed > 0, self.samples_left / np.where(speed > 0, speed, 1.0), math.inf)

    def relative_spread(self) -> float:
        """Relative spread of the speed; see ``Outlook``."""
        return self._spread
