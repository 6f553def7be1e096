"""Cluster of a queue as the simulator knows it: its fleet, and the policy of its scheduler with the scheduler's settings."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from paceline.array_types import Ints
from paceline.scheduling.fleet import Fleet, NodeGroup
from paceline.scheduling.policies.backfill.kueue import flavor_groups
from paceline.scheduling.policies.backfill.slurm import slurm
from paceline.scheduling.policies.registry import configured
from paceline.scheduling.queues.kueue_settings import ClusterQueue, Cohort, KueueSettings, Quota
from paceline.scheduling.queues.queues_file import Settings
from paceline.scheduling.queues.quota_tree import QuotaTree
from paceline.scheduling.queues.slurm_settings import SlurmPartition, SlurmSettings
from paceline.scheduling.starts.queue_nodes import QueueNodes
from paceline.scheduling.state import Policy
from paceline.scheduling.traces.logs.volcano import ANY_DEVICE, COHORT
from paceline.scheduling.traces.record import LoggedJob

COUNTLESS = 1 << 16
"""Devices of all flavors together whose machines are unknown, so that only quotas bind."""


@dataclass(frozen=True)
class PolicyCluster:
    """Fleet and settings with which the futures of a queue are simulated.

    Attributes:
        fleet: one group for each kind of node. Nodes of a kind are one node unless jobs require single nodes.
        group_of, node_of: group and node of the fleet for each node of the queue.
    """

    nodes: QueueNodes
    fleet: Fleet
    settings: Settings
    group_of: Ints
    node_of: Ints

    @classmethod
    def of(cls, nodes: QueueNodes, settings: Settings, single_nodes: bool = False) -> PolicyCluster:
        """Return the cluster of some nodes.

        Args:
            single_nodes: keep nodes apart, because jobs require all devices on one of them.
        """
        kinds = _kinds(nodes, settings)
        every = list(dict.fromkeys(kinds))
        group_of = np.array([every.index(kind) for kind in kinds], np.int64)
        groups, node_of = [], np.zeros(len(kinds), np.int64)
        first = 0
        for group, kind in enumerate(every):
            there = np.flatnonzero(group_of == group)
            sizes = nodes.devices[there]
            apart = single_nodes and not nodes.quotas and len(set(sizes.tolist())) == 1
            count, size = (len(there), int(sizes[0])) if apart else (1, int(sizes.sum()))
            size = COUNTLESS // len(every) if nodes.quotas else max(size, 1)
            groups.append(NodeGroup.of(_group_name(kind, group, nodes, every), count, size))
            node_of[there] = first + (np.arange(len(there)) if apart else 0)
            first += count
        fleet = Fleet(tuple(groups))
        return cls(nodes, fleet, _settings(settings, nodes, fleet, kinds), group_of, node_of)

    @cached_property
    def policy(self) -> Policy:
        """Policy of the scheduler."""
        if isinstance(self.settings, SlurmSettings):
            return partial(slurm, settings=self.settings, submits=False)
        return configured("kueue", self.settings)

    @cached_property
    def quick_policy(self) -> Policy:
        """The same policy without reasons: it starts the same jobs in less time."""
        return (
            partial(slurm, settings=self.settings, explains=False, submits=False)
            if isinstance(self.settings, SlurmSettings)
            else self.policy
        )

    @property
    def preempts(self) -> bool:
        """True if a job may lose its devices before its end."""
        if isinstance(self.settings, SlurmSettings):
            return self.settings.preempt != "none"
        queues = self.settings.queues.values()
        return any(queue.within != "Never" or queue.reclaim != "Never" for queue in queues)

    def groups(self, job: LoggedJob) -> tuple[int, ...]:
        """Return the groups of the fleet that a job may use."""
        return tuple(dict.fromkeys(self.group_of[list(self.nodes.pool(job))].tolist()))

    def pod_devices(self, job: LoggedJob) -> int:
        """Return the devices of each pod of a job; 0 if it has none, they differ, or no kind of node can hold them all.

        The part of a job of Slurm on each of its nodes is a pod. Two small ones may be on one node, which Slurm never does.
        """
        pods = job.pods or (job.nodes if spans_nodes(job) else 0)
        if self.nodes.quotas or not pods or job.devices % pods:
            return 0
        each = job.devices // pods
        kinds = [self.fleet.groups[group] for group in self.groups(job)]
        return each if any(kind.devices_per_node // each * kind.nodes >= pods for kind in kinds) else 0

    def most(self, job: LoggedJob) -> int:
        """Return the most devices that a job could get if no other job ran: on one kind of node, within the quotas."""
        sizes = [self.fleet.groups[group].devices for group in self.groups(job)]
        return min(max(sizes, default=0), self.within_quotas(job))

    def within_quotas(self, job: LoggedJob) -> int:
        """Return the most devices of one flavor that the queue of a job may use if no other job ran."""
        if isinstance(self.settings, SlurmSettings) or not self.settings.queues:
            return self.nodes.total
        groups, queue = self.groups(job), self.settings.queues.get(job.queue, ClusterQueue())
        usable = [flavor for flavor in queue.quotas if self._flavor_groups.get(flavor, -1) in groups]
        return max((self._quotas.available(job.queue, flavor) for flavor in usable), default=0)

    @cached_property
    def _flavor_groups(self) -> dict[str, int]:
        assert isinstance(self.settings, KueueSettings)
        return flavor_groups(self.settings, self.fleet.types)

    @cached_property
    def _quotas(self) -> QuotaTree:
        assert isinstance(self.settings, KueueSettings)
        return QuotaTree(self.settings, self._flavor_groups)


def spans_nodes(job: LoggedJob) -> bool:
    """Return whether a job of Slurm asks for several devices on each of several nodes."""
    return job.nodes > 1 and job.node_devices > 1 and job.nodes * job.node_devices == job.devices


def _kinds(nodes: QueueNodes, settings: Settings) -> list[Hashable]:
    """Return the kind of each node: its flavor, its type, or its type and the partitions that share nodes with it."""
    if nodes.quotas:
        return list(nodes.names)
    if isinstance(settings, KueueSettings):
        return list(nodes.types)
    return list(zip(nodes.types, _joined_partitions(nodes), strict=True))


def _joined_partitions(nodes: QueueNodes) -> list[int]:
    """Return a number for each node that is equal for nodes of partitions which overlap, directly or through others."""
    number = list(range(len(nodes.types)))
    for members in nodes.of_queue.values():
        if members:
            first, others = number[members[0]], {number[node] for node in members}
            number = [first if each in others else each for each in number]
    loose = set(range(len(number))) - {node for members in nodes.of_queue.values() for node in members}
    return [-1 if node in loose else each for node, each in enumerate(number)]


def _group_name(kind: Hashable, group: int, nodes: QueueNodes, every: Sequence[Hashable]) -> str:
    """Return the name of a group, which is a device type for the simulator: the type itself if it is unique."""
    if nodes.quotas:
        return f"flavor {group}"
    name = kind if isinstance(kind, str) else kind[0]  # type: ignore[index]
    same = sum((other if isinstance(other, str) else other[0]) == name for other in every)  # type: ignore[index]
    return f"{name or 'device'}" if same == 1 else f"{name or 'device'}, part {group}"


def _settings(settings: Settings, nodes: QueueNodes, fleet: Fleet, kinds: Sequence[Hashable]) -> Settings:
    """Return the settings with the names of the fleet's types."""
    if isinstance(settings, SlurmSettings):
        return _with_bounds(settings, nodes, kinds)
    if any(ANY_DEVICE in queue.quotas for queue in settings.queues.values()):
        return _of_volcano(settings, nodes, fleet)
    if not nodes.quotas:
        return settings
    return replace(settings, flavors={flavor: fleet.types[at] for at, flavor in enumerate(dict.fromkeys(nodes.names))})


def _of_volcano(settings: KueueSettings, nodes: QueueNodes, fleet: Fleet) -> KueueSettings:
    """Return the settings of Volcano with the quotas of its queues for each type, and the rest of the devices in the cohort."""
    queues = {
        name: replace(queue, quotas=dict.fromkeys(fleet.types, queue.quotas[ANY_DEVICE]))
        for name, queue in settings.queues.items()
    }
    owed = sum(queue.quotas[ANY_DEVICE].nominal for queue in settings.queues.values())
    rest = {
        kind: Quota(nominal=max(int(nodes.devices.sum() if nodes.quotas else group.devices) - owed, 0))
        for kind, group in zip(fleet.types, fleet.groups, strict=True)
    }
    return replace(settings, queues=queues, cohorts={COHORT: Cohort(quotas=rest)}, flavors={})


def _with_bounds(settings: SlurmSettings, nodes: QueueNodes, kinds: Sequence[Hashable]) -> SlurmSettings:
    """Return the settings of Slurm with the size of each partition that has only some of the nodes of a kind as its bound."""
    partitions = dict(settings.partitions)
    for name, members in nodes.of_queue.items():
        of_kinds = {kinds[node] for node in members}
        whole = {node for node, kind in enumerate(kinds) if kind in of_kinds}
        if members and whole != set(members):
            stated = partitions.get(name, SlurmPartition())
            size = int(nodes.devices[list(members)].sum())
            bound = size if stated.max_devices is None else min(stated.max_devices, size)
            partitions[name] = replace(stated, max_devices=bound)
    return replace(settings, partitions=partitions)
