"""Nodes of a live cluster, and where its running jobs are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from paceline.array_types import Ints
from paceline.errors import UserError
from paceline.hardware.catalogue import known_device
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.placement import Placement
from paceline.scheduling.queues.kueue_objects import SLICE
from paceline.scheduling.queues.kueue_settings import KueueSettings
from paceline.scheduling.starts.backfill import Shape, ShapeOnNodes
from paceline.scheduling.traces.logs.gres import split_slice
from paceline.scheduling.traces.logs.volcano import ANY_DEVICE
from paceline.scheduling.traces.record import LoggedJob


@dataclass(frozen=True)
class QueueNodes:
    """Nodes of a live cluster.

    Attributes:
        devices: devices of each node. ``types``: device type of each node. ``names``: its name; empty: unknown.
        of_queue: numbers of the nodes of each queue, such as Slurm's partitions. Another queue may use all nodes.
        away: names of nodes that start no job. Jobs that run there hold no other devices.
        quotas: True if each node is a flavor of Kueue with the quotas of all queues, because no machines are known.
        notes: sentences on nodes that were left out.
    """

    devices: Ints
    types: tuple[str, ...]
    names: tuple[str, ...] = ()
    of_queue: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    away: tuple[str, ...] = ()
    quotas: bool = False
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, fleet: Fleet) -> QueueNodes:
        """Return the nodes of a fleet."""
        types = tuple(fleet.types[group] for group in fleet.node_types.tolist())
        return cls(fleet.node_devices.copy(), types, fleet.names)

    def by_node(self) -> QueueNodes:
        """Return the nodes as one device each, for jobs that name no devices."""
        notes = (*self.notes, "No job of the queue names a GPU: nodes count as devices.")
        return replace(self, devices=np.ones_like(self.devices), types=("node",) * len(self.types), notes=notes)

    @property
    def slices(self) -> tuple[str, ...]:
        """Types of its nodes that are MIG slices; empty if it has a whole device."""
        kinds = tuple(dict.fromkeys(self.types))
        return kinds if kinds and all(map(_profile, kinds)) else ()

    @property
    def total(self) -> int:
        """Devices of all nodes."""
        return int(self.devices.sum())

    def joined(self) -> QueueNodes:
        """Return one node for all devices of one type that the same queues may use."""
        members = {name: frozenset(chosen) for name, chosen in self.of_queue.items()}
        queues = [tuple(name for name, chosen in members.items() if node in chosen) for node in range(len(self.types))]
        kinds = list(zip(self.types, queues, strict=True))
        groups = list(dict.fromkeys(kinds))
        number = np.array([groups.index(kind) for kind in kinds], np.int64)
        devices = np.bincount(number, self.devices, len(groups)).astype(np.int64)
        of_queue = {name: tuple(at for at, group in enumerate(groups) if name in group[1]) for name in self.of_queue}
        return replace(self, devices=devices, types=tuple(kind for kind, _ in groups), names=(), of_queue=of_queue)

    @cached_property
    def _pools(self) -> dict[tuple[str, tuple[str, ...], str], tuple[int, ...]]:
        """Pools that were asked for before, by queue, types and MIG profile."""
        return {}

    def pool(self, job: LoggedJob) -> tuple[int, ...]:
        """Return the numbers of the nodes that a job may use."""
        key = job.queue, job.device_types, job.profile
        if key not in self._pools:
            self._pools[key] = self._pool(job)
        return self._pools[key]

    def _pool(self, job: LoggedJob) -> tuple[int, ...]:
        every = [node for name in job.queue.split(",") for node in self.of_queue.get(name, ())]
        nodes = sorted(set(every)) if every else range(len(self.devices))
        nodes = [node for node in nodes if _profile(self.types[node]) == job.profile]
        if self.quotas and (flavors := [node for node in nodes if self.names[node].split(SLICE)[0] in job.device_types]):
            return tuple(flavors)
        return tuple(node for node in nodes if not job.device_types or _is_type(self.types[node], job.device_types))


@lru_cache(maxsize=1024)
def _profile(device: str) -> str:
    """Return the MIG profile of a type of device; empty for whole ones."""
    return split_slice(device)[1]


def _is_type(device: str, wanted: Sequence[str]) -> bool:
    """Return whether a device is of a wanted type: Slurm writes ``a100`` for ``A100 SXM 80GB``."""
    return any(not device or _same_type(device, name) for name in wanted)


@lru_cache(maxsize=1024)
def _same_type(one: str, other: str) -> bool:
    """Return whether two names are those of one device, or one is the other with more words: ``a10`` isn't ``A100``."""
    found, second = known_device(one), known_device(other)
    if found is not None and second is not None and found.name == second.name:
        return True
    short, long = sorted((one.casefold(), other.casefold()), key=lambda name: len(re.sub(_BETWEEN, "", name)))
    letters = (re.escape(letter) for letter in re.sub(_BETWEEN, "", short))
    return re.search(_BETWEEN.join(letters) + r"(?!(?<=\d)\d)", long) is not None


_BETWEEN = "[ _-]*"
"""Separators in names of devices, which do not matter."""


def guessed_placements(nodes: QueueNodes, running: Sequence[LoggedJob]) -> list[Placement]:
    """Return the devices of each running job by node.

    A job whose nodes the log names is there, in equal parts, but for those on nodes that are away. Others get the nodes with
    the fewest free devices that hold them, the largest first.
    """
    if nodes.quotas:
        return [((pool[0], job.devices),) if (pool := nodes.pool(job)) else () for job in running]
    free = nodes.devices.copy()
    placements: list[Placement] = [() for _ in running]
    running = [_without(job, frozenset(nodes.away)) for job in running]
    unknown_nodes = []
    for index, job in enumerate(running):
        number = {nodes.names[node]: node for node in nodes.pool(job)} if job.node_names and nodes.names else {}
        names = [name for name in job.node_names if name in number]
        if not names:
            unknown_nodes.append(index)
            continue
        share, more = divmod(job.devices, len(names))
        placements[index] = tuple((number[name], share + (at < more)) for at, name in enumerate(names) if share + (at < more))
        for node, count in placements[index]:
            free[node] -= count
    free = np.maximum(free, 0)
    for index in sorted(unknown_nodes, key=lambda index: -running[index].devices):
        job = running[index]
        if not job.devices:
            continue
        pool = nodes.pool(job) or tuple(range(len(nodes.devices)))
        whole = ShapeOnNodes(Shape(pool, job.devices, job.nodes))
        loose = ShapeOnNodes(Shape(pool, job.devices))
        chosen = whole.place(free) if whole.fits(free) else loose.place(free)
        placements[index] = chosen
        for node, count in chosen:
            free[node] -= count
    return placements


def _without(job: LoggedJob, away: frozenset[str]) -> LoggedJob:
    """Return a running job with its part on nodes that are not away. Its devices are in equal parts."""
    if away.isdisjoint(job.node_names):
        return job
    share, more = divmod(job.devices, len(job.node_names))
    parts = {name: share + (at < more) for at, name in enumerate(job.node_names) if name not in away}
    return replace(job, devices=sum(parts.values()), nodes=len(parts), node_names=tuple(parts))


def nodes_of_quotas(settings: KueueSettings, file: str = "the file") -> QueueNodes:
    """Return a node for each flavor, with the quotas of all queues and cohorts, and the flavors of each cluster queue.

    Raises:
        UserError: no quota of devices.
    """
    devices: Counter[str] = Counter()
    for quotas in (holder.quotas for every in (settings.queues, settings.cohorts) for holder in every.values()):
        for flavor, quota in quotas.items():
            devices[flavor] += quota.nominal + (quota.borrowing_limit or 0 if flavor == ANY_DEVICE else 0)
    if not devices.total():
        raise UserError(f"{file} has no quota of devices", "add the ClusterQueues, or give `cluster`")
    flavors = list(devices)
    return QueueNodes(
        devices=np.array([devices[flavor] for flavor in flavors], np.int64),
        types=tuple(settings.flavors.get(flavor, "") for flavor in flavors),
        names=tuple(flavors),
        of_queue={
            name: tuple(at for at, flavor in enumerate(flavors) if flavor in queue.quotas)
            for name, queue in settings.queues.items()
        },
        quotas=True,
    )
