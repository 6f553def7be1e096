"""What Pollux's simulator tells its Optimus: the true times of steps, and all steps after the current epoch."""

from __future__ import annotations

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.simulate.profiled_run import ProfiledRun
from paceline.scheduling.speeds.goodput import batch_split
from paceline.scheduling.speeds.profiles import packed


class OptimusOracle(ProfiledRun):
    """An oracle with the grain of the published one: it does not see the epoch in which a job is, so a job in its last epoch
    counts as one step; one device always takes two passes."""

    def seconds_left(self, device_type: int, most: int) -> Array:
        """As ``Outlook``."""
        epochs, batch = self.profile.epochs, self.job.batch
        last = epochs.count - 1
        steps = epochs.steps(batch, last) - epochs.steps(batch, self.epoch) if self.epoch < last else 1.0
        return self._step_table(device_type, most) * steps

    def _step_table(self, device_type: int, most: int) -> Array:
        group = self.fleet.groups[device_type]
        limits, speed = self._limits(group.device), self.profile.speed(group.device)
        table = np.full(most + 1, np.inf)
        for devices in range(1, most + 1):
            local, passes = batch_split(limits, self.job.batch, devices)
            if devices == 1 and passes == 0:
                local, passes = -(-local // 2), 1
            step, exchange = speed.measured(packed(devices, group.devices_per_node), local)
            table[devices] = np.nan_to_num(step + passes * (step - exchange), nan=np.inf)
        return table


__all__ = ["OptimusOracle"]
