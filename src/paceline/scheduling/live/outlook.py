"""What a live schedule believes of a job: its reports, or a prediction that the reports of all jobs correct."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.live.journal import LiveRow
from paceline.scheduling.speeds.goodput import StepSeconds


class ReportedOutlook:
    """What a job's own reports say of its speed; what it never tried counts as in proportion to the devices.

    Progress is in samples. Before its first report only ratios mean anything: the speed on one device counts as 1.
    """

    def __init__(self, row: LiveRow) -> None:
        self._row, self._sizes = row, row.launch.sizes

    def goodput(self, device_type: int, most: int) -> Array:
        """Samples a second on 0 to ``most`` devices; between two legal sizes as on the smaller."""
        table = np.zeros(most + 1)
        for size in self._sizes:
            table[size:] = self._speed(size)
        return table

    def _speed(self, size: int) -> float:
        return self._row.samples_per_s(size) if self._row.reports else float(size)

    def max_devices(self) -> int:
        """The largest legal size."""
        return self._sizes[-1]

    def seconds_left(self, device_type: int, most: int) -> Array:
        """From the stated duration, or the samples left; NaN where nobody knows them or, before a report, the speed."""
        speed = self.goodput(device_type, most)
        if self._row.launch.job.duration_s:
            left_s = max(self._row.launch.job.duration_s - self._row.run_s, 0.0)
            return np.where(speed > 0, left_s, math.inf)
        left = self._row.launch.samples_left(self._row.progress) if self._row.reports else math.nan
        return np.where(speed > 0, left / np.where(speed > 0, speed, 1.0), math.inf)

    def relative_spread(self) -> float:
        """0 where its speed was reported or its duration stated; infinite before, when nothing is known."""
        return 0.0 if self._row.reports or self._row.launch.job.duration_s else math.inf


class PredictedOutlook:
    """Predicted steps of a job, as the reports of all jobs correct them. Progress is in samples.

    Args:
        times: of its network by device; it runs on no other device. ``most``: the largest batch of a device that fits.
        samples_left: of all its work; NaN: nobody knows.
        spread: half the 80 % range of a step beside the step; 0: measured.
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
        """Samples a second on 0 to ``most`` devices; between two legal sizes as on the smaller."""
        if device_type not in self._tables:
            self._tables[device_type] = self._speeds(device_type)
        steps = np.searchsorted(self._sizes, np.arange(most + 1), side="right")
        return np.asarray(np.concatenate([[0.0], self._tables[device_type]])[steps])

    def _speeds(self, device_type: int) -> Array:
        """Samples a second on each legal size; 0 where it cannot run."""
        group = self._fleet.groups[device_type]
        if group.device not in self._times:
            return np.zeros(len(self._sizes))
        nodes = -(-self._sizes // group.devices_per_node)
        local = self._batch // self._sizes
        step_s, _ = self._times[group.device].step_s(nodes, self._sizes, local)
        runs = (self._sizes <= group.devices) & (local <= self._most[group.device])
        return np.where(runs, self._batch / step_s, 0.0)

    def max_devices(self) -> int:
        """The largest legal size."""
        return int(self._sizes[-1])

    def seconds_left(self, device_type: int, most: int) -> Array:
        """From the samples that are left; NaN where nobody knows them."""
        speed = self.goodput(device_type, most)
        return np.where(speed > 0, self.samples_left / np.where(speed > 0, speed, 1.0), math.inf)

    def relative_spread(self) -> float:
        """As ``Outlook``."""
        return self._spread


__all__ = ["PredictedOutlook", "ReportedOutlook"]
