"""Run of a job with measured steps and gradient noise, and the job's knowledge of itself.

The batch is chosen like Pollux's agent does (OSDI 2021, section 4.1): the best goodput by its own fit and its last noise.
"""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from functools import cached_property

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet, NodeGroup
from paceline.scheduling.job import Job
from paceline.scheduling.speeds.expected_speed import SpeedEstimate
from paceline.scheduling.speeds.goodput import BatchLimits, Noise, StepSeconds, batch_split, best_batches
from paceline.scheduling.speeds.goodput_tables import MissingTable, SharedGoodput
from paceline.scheduling.speeds.profiles import ModelProfile
from paceline.scheduling.state import Outlook

GROWTH = 2
"""Largest growth: a job tries at most this many times the devices that it has run on (Pollux's simulator; Sia, section 4)."""

_NO_TABLE = np.zeros(0)


class ProfiledRun:
    """Run of a job with a measured profile.

    Args:
        fleet: nodes; its types are those of ``goodput``.
        adapts_batch: choose the batch; else ``job.batch`` is fixed.
        beliefs: expected steps that its outlook reports. A type without any is assumed to scale like the first known type,
            times the ratio of single-device speeds, which is measured beforehand (Sia, SOSP 2023, section 3.3).
        work_stated: True if the owner states the length of the training. If not, the length of ended jobs of the model is
            assumed, and before any ended it is unknown.
        work_error: expected remaining work / true remaining work.
        slowdown: factor by which true steps are longer than measured ones.
        strategy: strategy in words; empty: unknown.
    """

    def __init__(
        self,
        job: Job,
        profile: ModelProfile,
        fleet: Fleet,
        *,
        adapts_batch: bool,
        beliefs: SpeedEstimate,
        work_stated: bool = True,
        work_error: float = 1.0,
        slowdown: float = 1.0,
        strategy: str = "",
    ) -> None:
        self.job, self.profile, self.fleet = job, profile, fleet
        self.beliefs = beliefs
        self.adapts_batch, self.work_stated, self.work_error = adapts_batch, work_stated, work_error
        self.epoch = 0
        self.to_next = float(profile.epochs.ends[0])
        self.speed = 0.0
        self.finished = False
        self.batch = 0
        self.slowdown, self.strategy = slowdown, strategy
        self._seen: set[tuple[str, tuple[int, int, int]]] = set()
        self._most_seen = 0
        self._noise: Noise | None = None
        self._device = ""
        self._shape: tuple[int, ...] = ()
        self._crossed = 0
        self._local, self._passes = 0, 0
        self._limits_by_device: dict[str, BatchLimits] = {}
        self._tables: dict[int, tuple[StepSeconds | None, Noise | None, Array]] = {}

    @property
    def outlook(self) -> Outlook:
        """Expected speed as policies see it; see ``JobRun``."""
        return self

    def goes_to(self, left: float) -> None:
        """Set the remainder of ``to_next``; see ``JobRun``."""
        self.to_next = left

    def place(self, device: str, shape: tuple[int, ...], crossed: int = 0) -> None:
        """Place the job on devices; see ``JobRun``."""
        self._device, self._shape, self._crossed = device, shape, crossed
        if shape:
            self._choose_batch()
            self._run_on()
        else:
            self.speed, self.batch = 0.0, 0

    def cross(self) -> None:
        """Continue after ``to_next`` has reached 0; see ``JobRun``."""
        self._observe()
        self.epoch += 1
        if self.epoch >= self.profile.epochs.count:
            self.finished = True
            self.beliefs.end(float(self.profile.epochs.ends[-1]))
            return
        ends = self.profile.epochs.ends
        self.to_next = float(ends[self.epoch] - ends[self.epoch - 1])
        self._choose_batch()
        self._run_on()

    def refresh(self) -> None:
        """Begin a round; see ``JobRun``."""
        if self._shape:
            self._observe()
            self._choose_batch()
            self._run_on()

    def _limits(self, device: str) -> BatchLimits:
        if device not in self._limits_by_device:
            fixed = 0 if self.adapts_batch else self.job.batch
            self._limits_by_device[device] = replace(self.profile.limits(device), fixed=fixed)
        return self._limits_by_device[device]

    def _placed_limits(self) -> BatchLimits:
        """Batch limits on the devices that the job holds."""
        return self._limits(self._device)

    def _believed_limits(self, device: str) -> BatchLimits:
        """Batch limits that the outlook assumes."""
        return self._limits(device)

    def _choose_batch(self) -> None:
        limits, devices = self._placed_limits(), sum(self._shape)
        times = self.beliefs.times(self._device)
        if limits.fixed or times is None:
            batch = limits.fixed or max(limits.first, limits.local_least * devices)
            self._local, self._passes = batch_split(limits, batch, devices)
        else:
            nodes = np.array([len(self._shape)])
            _, local, passes = best_batches(times, limits, self.noise, nodes, np.array([devices]))
            self._local = min(int(local[0]), limits.most // (devices * (int(passes[0]) + 1)))
            self._passes = int(passes[0])
        self.batch = devices * self._local * (self._passes + 1)

    def _run_on(self) -> None:
        """Set the true speed with the chosen batch."""
        step, exchange = self._step()
        seconds = (step + self._passes * (step - exchange)) * self.slowdown
        noise = self.profile.epochs.noise(self.batch, self.epoch)
        self.speed = float(noise.gain(self.batch / self._limits(self._device).first)) / seconds

    def _step(self) -> tuple[float, float]:
        step, exchange = self.profile.speed(self._device).measured(self._shape, self._local, self._crossed)
        if not step > 0:
            least, most = self.profile.speed(self._device).local_range
            nodes = "+".join(map(str, self._shape))
            raise UserError(
                f"job {self.job.name!r}: no step was measured on {nodes} {self._device} with {self._local} samples a device",
                f"choose a batch of {least} to {most} samples a device, or let it adapt its batch",
            )
        return step, exchange

    def _observe(self) -> None:
        """Learn from the steps since the last change."""
        noise = self.profile.epochs.noise(self.batch, self.epoch)
        key = (len(self._shape), sum(self._shape), self._local)
        self._noise = noise
        self._most_seen = max(self._most_seen, key[1])
        if not self._crossed and (self._device, key) not in self._seen:  # estimates assume as few racks as possible
            self._seen.add((self._device, key))
            self.beliefs.see(self._device, key, self._step())

    @property
    def noise(self) -> Noise:
        """Last observed noise, or that of the first epoch; see ``SharedOutlook``."""
        return self._noise or self._first_noise

    @cached_property
    def _first_noise(self) -> Noise:
        return self.profile.epochs.noise(float(self.profile.epochs.batches[0]), 0)

    @cached_property
    def kind(self) -> tuple[int, ...] | None:
        """Profile, source of the steps, and limits; see ``SharedOutlook``."""
        source = self.beliefs.source
        if source is None:
            return None
        limits = (self._believed_limits(group.device) for group in self._groups)
        return id(self.profile), id(source), id(self.fleet), *(value for limit in limits for value in astuple(limit))

    def shared_goodput(self, device_type: int) -> SharedGoodput | None:
        """Return the steps and limits on a type; see ``SharedOutlook``."""
        group, times = self._believed(device_type)
        if times is None:
            return None
        limits, factor = self._believed_limits(group.device), self._relative_speed(device_type, group)
        return SharedGoodput(times, limits, group.devices_per_node, factor)

    def goodput(self, device_type: int, most: int) -> Array:
        """Return the progress a second by number of devices; see ``Outlook``."""
        group, times = self._believed(device_type)
        table = self._known(device_type, most, times)
        if table is None:
            table = self._table(device_type, most, group, times)
            self._tables[device_type] = times, self._noise, table
        return table[: most + 1]

    def missing_goodput(self, device_type: int, most: int) -> MissingTable | None:
        """Return what ``goodput`` would compute; None if nothing, or if it is specific to this job."""
        group, times = self._believed(device_type)
        if times is None or self._known(device_type, most, times) is not None:
            return None
        limits = self._believed_limits(group.device)

        def keep(shared: Array) -> None:
            self._tables[device_type] = times, self._noise, self._scaled(device_type, group, shared)

        return MissingTable(times, limits, group.devices_per_node, most, self.noise, keep)

    def _known(self, device_type: int, most: int, times: StepSeconds | None) -> Array | None:
        """Return the last table if it still holds and is long enough."""
        believed, noise, table = self._tables.get(device_type, (None, None, _NO_TABLE))
        return table if len(table) > most and believed is times and noise == self._noise else None

    def _believed(self, device_type: int) -> tuple[NodeGroup, StepSeconds | None]:
        """Return a group with known steps, of this type if possible, and those; None if unknown, or if the job cannot run."""
        own = self.fleet.groups[device_type]
        if own.device not in self.profile.speeds:
            return own, None
        for group in (own, *self._groups):
            if (times := self.beliefs.times(group.device)) is not None:
                return group, times
        return own, None

    def _table(self, device_type: int, most: int, group: NodeGroup, times: StepSeconds | None) -> Array:
        if self.fleet.groups[device_type].device not in self.profile.speeds:
            return np.zeros(most + 1)
        if times is None:  # nothing was seen: twice the devices are twice as fast
            counts = np.arange(most + 1)
            return np.where(counts < self.least_devices, 0.0, counts.astype(float))
        limits = self._believed_limits(group.device)
        return self._scaled(device_type, group, times.packed_goodput(limits, group.devices_per_node, most, self.noise))

    def _scaled(self, device_type: int, group: NodeGroup, goodput: Array) -> Array:
        """Return the table for a type from the goodput on 1 and more devices of a group."""
        table = np.zeros(len(goodput) + 1)
        table[1:] = goodput
        if (factor := self._relative_speed(device_type, group)) != 1:
            table *= factor
        table[: self.least_devices] = 0.0
        return table

    def _relative_speed(self, device_type: int, group: NodeGroup) -> float:
        """Return the speed of one device of a type relative to one of a group."""
        own = self.fleet.groups[device_type]
        return 1.0 if group is own else self.profile.speed(own.device).alone / self.profile.speed(group.device).alone

    def max_devices(self) -> int:
        """Return the largest number of devices with a known speed; see ``Outlook``."""
        if "devices" not in self.job.adapts:
            return self.job.devices
        if self.beliefs.scales:
            return self._most_devices
        return max(1, min(max(GROWTH * self._most_seen, self.least_devices), self._most_devices))

    @cached_property
    def _most_devices(self) -> int:
        """Largest number of devices by batch, owner and fleet."""
        limits = [self._limits(group.device) for group in self._groups]
        bound = max((limit.fixed or limit.most) // limit.local_least for limit in limits)
        return max(1, min(self.fleet.devices, bound, self.job.max_devices or self.fleet.devices))

    def curve(self) -> Array:
        """Metric after each epoch so far, at the batch of the last one."""
        epochs = self.profile.epochs
        row = int(np.abs(epochs.batches - self.batch).argmin())
        return epochs.metric[row, : self.epoch]

    @cached_property
    def _groups(self) -> list[NodeGroup]:
        """Groups on which the job can run."""
        return [group for group in self.fleet.groups if group.device in self.profile.speeds]

    @property
    def least_devices(self) -> int:
        """Least number of devices on which the job runs; see ``SharedOutlook``."""
        return self.job.min_devices if "devices" in self.job.adapts else self.job.devices

    def seconds_left(self, device_type: int, most: int) -> Array:
        """Return the seconds to the end by number of devices; see ``Outlook``."""
        with np.errstate(divide="ignore"):
            return self.progress_left() / self.goodput(device_type, most)

    def progress_left(self) -> float:
        """Return the remaining progress as far as it is known; NaN if unknown. See ``SharedOutlook``."""
        ends = self.profile.epochs.ends
        done = float(ends[self.epoch]) - self.to_next
        total = float(ends[-1]) if self.work_stated else self.beliefs.total()
        return math.nan if total is None or total <= done else (total - done) * self.work_error

    def relative_spread(self) -> float:
        """Return the relative spread of the goodput on the type that the job holds; see ``Outlook``.

        While the job waits, return the widest spread of the types it may use.
        """
        held = [self._device] if self._device else [group.device for group in self._groups if self.job.may_use(group.device)]
        return max((self.beliefs.spread(device) for device in held), default=0.0)
