"""A job of a shared cluster: arrival, work, and the choices it leaves to a scheduler."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from paceline.errors import UserError, shorten, shown, unknown
from paceline.scheduling.speeds.stated_strategy import parse_strategy

Choice = Literal["devices", "batch", "strategy"]
CHOICES: tuple[Choice, ...] = get_args(Choice)
Topology = Literal["", "node", "rack"]
"""Domain that must hold all devices of a job; empty: any nodes."""
TOPOLOGIES: tuple[Topology, ...] = get_args(Topology)
LONGEST_S = 1e9
"""Longest legal duration; a larger number is probably in another unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Job in its owner's words. A job that states only ``devices`` and ``duration_s`` is rigid.

    Attributes:
        name: unique name in a trace.
        arrival_s: seconds after the start of the trace.
        model: name of a profile or a network; empty: only a duration is known.
        devices: devices asked for.
        min_devices, max_devices: bounds of an elastic job; 0 means those of the profile or the cluster.
        batch: requested samples a step of all devices; 0: unknown. ``min_batch``, ``max_batch``: bounds of an adaptive job.
        duration_s: duration on the devices asked for, at most ``LONGEST_S``; 0: unknown.
        steps, samples, epochs: work in the unit that is known; 0: unknown. ``target``: name of a target that ends the job.
        strategy: strategy as ``stated_strategy`` reads it; empty: data parallelism, or the best one if the strategy adapts.
        adapts: properties that a scheduler may choose: ``devices``, ``batch``, ``strategy``.
        device_types: the only types it may use; empty: all types.
        weight: weight of its share, above 0.
        deadline_s: seconds after the start of the trace; inf: none.
        virtual_cluster, owner: accounts that its devices count to.
        limit_s: longest time that it may run, as its owner states it; the job is ended then. 0: unknown.
        priority: a job of higher priority comes first, under policies that have priorities.
        preemptible: False: once started, it keeps its devices to its end.
        min_run_s: seconds after a start before it may lose its devices again.
        grace_s: seconds between the warning of a preemption and the loss of the devices. The job works meanwhile.
        topology: domain that must hold all its devices, ``node`` or ``rack``; empty: none is required.
        pod_devices: devices of each of its pods. The devices of a pod are on one node; 0: it has no pods.
        share: fraction of the device that it needs; below 1 for a job on one device, which others then share.
        queue: partition of Slurm or queue of Kueue; empty: the default one. ``qos``: quality of service of Slurm.
        resources: processors (``cpu``), bytes of memory (``mem``) and nodes (``node``) that it asks for; missing: not stated.
        array: array that it is a task of. ``array_limit``: most tasks of the array that run at once; 0: no bound.
    """

    name: str
    arrival_s: float = 0.0
    model: str = ""
    devices: int = 1
    min_devices: int = 1
    max_devices: int = 0
    batch: int = 0
    min_batch: int = 0
    max_batch: int = 0
    duration_s: float = 0.0
    steps: float = 0.0
    samples: float = 0.0
    epochs: float = 0.0
    target: str = ""
    strategy: str = ""
    adapts: frozenset[Choice] = frozenset()
    device_types: tuple[str, ...] = ()
    weight: float = 1.0
    deadline_s: float = math.inf
    virtual_cluster: str = ""
    owner: str = ""
    limit_s: float = 0.0
    priority: int = 0
    preemptible: bool = True
    min_run_s: float = 0.0
    grace_s: float = 0.0
    topology: Topology = ""
    pod_devices: int = 0
    share: float = 1.0
    queue: str = ""
    qos: str = ""
    resources: tuple[tuple[str, float], ...] = ()
    array: str = ""
    array_limit: int = 0

    def __post_init__(self) -> None:
        if not self.name:
            raise UserError("a job without a name", "name each job of a trace")
        for value, what, least in (
            (self.arrival_s, "arrival", 0.0),
            (self.duration_s, "duration", 0.0),
            (self.steps, "steps", 0.0),
            (self.samples, "samples", 0.0),
            (self.epochs, "epochs", 0.0),
            (self.limit_s, "time limit", 0.0),
            (self.min_run_s, "minimum runtime", 0.0),
            (self.grace_s, "grace", 0.0),
        ):
            if not least <= value < math.inf:
                raise UserError(f"job {self._short}: {what} {shown(value)}", "give a number from 0 up")
        if self.duration_s > LONGEST_S:
            raise UserError(
                f"job {self._short}: duration {shown(self.duration_s)}", f"give at most {LONGEST_S:,.0f} s, 31 years"
            )
        if self.devices < 1 or self.min_devices < 1:
            raise UserError(
                f"job {self._short}: {min(self.devices, self.min_devices)} devices", "give a whole number from 1 up"
            )
        if self.max_devices and self.max_devices < self.min_devices:
            raise UserError(
                f"job {self._short}: {self.min_devices} to {self.max_devices} devices", "give the smaller number first"
            )
        if not 0 < self.weight < math.inf:
            raise UserError(f"job {self._short}: weight {shown(self.weight)}", "give a number above 0")
        if not self.deadline_s > self.arrival_s:
            raise UserError(
                f"job {self._short}: its deadline is not after its arrival", "give both in seconds after the trace's start"
            )
        if not (self.duration_s or self.steps or self.samples or self.epochs or self.target):
            raise UserError(f"job {self._short} states no work", "give duration_s, steps, samples, epochs or a target")
        if unknown := set(self.adapts) - set(CHOICES):
            raise UserError(f"job {self._short} adapts {', '.join(sorted(unknown))}", f"legal: {', '.join(CHOICES)}")
        self._check_conditions()
        if self.strategy:
            try:
                parse_strategy(self.strategy)
            except UserError as error:
                raise UserError(f"job {self._short}: {error.message}", error.fix) from None

    def _check_conditions(self) -> None:
        """Raise UserError for illegal conditions on its devices."""
        if self.topology not in TOPOLOGIES:
            raise unknown(f"topology of job {self._short}", self.topology, TOPOLOGIES[1:])
        if self.pod_devices and (self.pod_devices < 0 or self.devices % self.pod_devices):
            what = f"{self.devices} devices in pods of {shown(self.pod_devices)}"
            raise UserError(f"job {self._short}: {what}", "give a multiple of the devices of a pod")
        if not 0 < self.share <= 1:
            raise UserError(f"job {self._short}: a share of {shown(self.share)} of a device", "give one above 0 and up to 1")
        if self.share < 1 and (self.devices > 1 or self.model or "devices" in self.adapts):
            what = f"{self.devices} devices" if self.devices > 1 else f"model {self.model}" if self.model else "adapts devices"
            fix = "a fraction of a device needs devices = 1, and a duration_s without a model"
            raise UserError(f"job {self._short}: a share of {self.share:g} and {what}", fix)

    @property
    def _short(self) -> str:
        return repr(shorten(self.name, 40))

    def may_use(self, device_type: str) -> bool:
        """Return whether the owner allows this device type."""
        return not self.device_types or device_type in self.device_types


def check_names(jobs: Iterable[Job], places: Sequence[str] = ()) -> None:
    """Raise UserError if two jobs have one name. ``places``: file and row of each job."""
    seen: dict[str, int] = {}
    for index, job in enumerate(jobs):
        if job.name in seen:
            where = f" ({places[seen[job.name]]}, and {places[index]})" if places else ""
            raise UserError(f"two jobs are named {shorten(job.name, 40)!r}{where}", "give each job a unique name")
        seen[job.name] = index
