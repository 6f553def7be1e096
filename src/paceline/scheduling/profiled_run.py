"""A job whose steps and noise were measured: the truth of the simulator, and what the job learns of itself.

Its batch is chosen as Pollux's agent chooses it (OSDI 2021, section 4.1): the best goodput by its own fit and its last noise.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.fitted_speed import FittedSpeed
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.goodput import BatchLimits, Noise, StepTimes, batch_split, best_batches
from paceline.scheduling.job import Job
from paceline.scheduling.profiles import Profile
from paceline.scheduling.state import Outlook

Knowledge = Literal["measured", "online"]
"""What a policy knows of speeds: the profile itself, or what the job saw since it began."""
GROWTH = 2
"""A job is tried on at most so many times the devices that it has run on (Pollux's simulator; Sia, SOSP 2023, section 4)."""


class ProfiledRun:
    """One job of a profile.

    Args:
        fleet: its types are those of ``goodput``.
        adapts_batch: whether it chooses its batch; else ``job.batch`` stays.
        knowledge: what its outlook says of speeds and of the work that is left.
    """

    def __init__(self, job: Job, profile: Profile, fleet: Fleet, *, adapts_batch: bool, knowledge: Knowledge) -> None:
        self.job, self.profile, self.fleet = job, profile, fleet
        self.knowledge: Knowledge = knowledge
        self.adapts_batch = adapts_batch
        self.epoch = 0
        self.to_next = float(profile.epochs.ends[0])
        self.speed = 0.0
        self.finished = False
        self.batch = 0
        self.fit: FittedSpeed | None = None
        self._seen: dict[tuple[int, int, int], tuple[float, float]] = {}
        self._most_seen = 0
        self._noise: Noise | None = None
        self._device = ""
        self._shape: tuple[int, ...] = ()
        self._local, self._passes = 0, 0
        self._tables: dict[tuple[int, int], Array] = {}

    @property
    def outlook(self) -> Outlook:
        return self

    def goes_to(self, left: float) -> None:
        self.to_next = left

    def place(self, device: str, shape: tuple[int, ...]) -> None:
        self._device, self._shape = device, shape
        if shape:
            self._choose_batch()
            self._run_on()
        else:
            self.speed, self.batch = 0.0, 0

    def cross(self) -> None:
        self._observe()
        self.epoch += 1
        if self.epoch >= self.profile.epochs.count:
            self.finished = True
            return
        ends = self.profile.epochs.ends
        self.to_next = float(ends[self.epoch] - ends[self.epoch - 1])
        self._choose_batch()
        self._run_on()

    def refresh(self) -> None:
        if self._shape:
            self._observe()
            self._choose_batch()
            self._run_on()

    def _limits(self, device: str) -> BatchLimits:
        limits = self.profile.limits(device)
        fixed = 0 if self.adapts_batch else self.job.batch
        return BatchLimits(limits.first, limits.most, limits.local_least, limits.local_most, fixed)

    def _choose_batch(self) -> None:
        limits, devices = self._limits(self._device), sum(self._shape)
        if limits.fixed or self.fit is None:
            batch = limits.fixed or max(limits.first, limits.local_least * devices)
            self._local, self._passes = batch_split(limits, batch, devices)
        else:
            nodes = np.array([len(self._shape)])
            _, local, passes = best_batches(self.fit, limits, self._last_noise, nodes, np.array([devices]))
            self._local = min(int(local[0]), limits.most // (devices * (int(passes[0]) + 1)))
            self._passes = int(passes[0])
        self.batch = devices * self._local * (self._passes + 1)

    def _run_on(self) -> None:
        """The true speed with the batch that was chosen."""
        step, exchange = self._step()
        seconds = step + self._passes * (step - exchange)
        noise = self.profile.epochs.noise(self.batch, self.epoch)
        self.speed = float(noise.gain(self.batch / self._limits(self._device).first)) / seconds

    def _step(self) -> tuple[float, float]:
        step, exchange = self.profile.speed(self._device).measured(self._shape, self._local)
        if not step > 0:
            raise ValueError(f"{self.job.name}: no step was measured on {self._shape} with {self._local} samples a device")
        return step, exchange

    def _observe(self) -> None:
        """Learn from the steps since the last change."""
        self._noise = self.profile.epochs.noise(self.batch, self.epoch)
        key = (len(self._shape), sum(self._shape), self._local)
        if key not in self._seen:
            self._seen[key] = self._step()
            self._most_seen = max(self._most_seen, key[1])
            if self.adapts_batch or self.knowledge == "online":
                self.fit = FittedSpeed.of(self._seen)
        self._tables.clear()

    @property
    def _last_noise(self) -> Noise:
        return self._noise or self.profile.epochs.noise(float(self.profile.epochs.batches[0]), 0)

    def _times(self, device: str) -> StepTimes | None:
        return self.profile.speed(device) if self.knowledge == "measured" else self.fit

    def goodput(self, device_type: int, most: int) -> Array:
        key = (device_type, most)
        if key not in self._tables:
            self._tables[key] = self._table(device_type, most)
        return self._tables[key]

    def _table(self, device_type: int, most: int) -> Array:
        group = self.fleet.groups[device_type]
        times = self._times(group.device)
        counts = np.arange(1, most + 1)
        if times is None:  # nothing was seen: twice the devices are twice as fast
            return np.arange(most + 1, dtype=float)
        nodes = -(-counts // group.devices_per_node)
        goodput, _, _ = best_batches(times, self._limits(group.device), self._last_noise, nodes, counts)
        return np.concatenate([[0.0], goodput])

    def max_devices(self) -> int:
        if "devices" not in self.job.adapts:
            return self.job.devices
        limits = self._limits(self.fleet.groups[0].device)
        bound = (limits.fixed or limits.most) // limits.local_least
        tried = self.fleet.devices if self.knowledge == "measured" else max(GROWTH * self._most_seen, 1)
        return max(1, min(tried, bound, self.job.max_devices or self.fleet.devices))

    def seconds_left(self, device_type: int, most: int) -> Array:
        ends = self.profile.epochs.ends
        left = float(ends[-1] - ends[self.epoch]) + self.to_next if self.knowledge == "measured" else math.nan
        with np.errstate(divide="ignore"):
            return left / self.goodput(device_type, most)

    def relative_spread(self) -> float:
        return 0.0


__all__ = ["GROWTH", "Knowledge", "ProfiledRun"]
