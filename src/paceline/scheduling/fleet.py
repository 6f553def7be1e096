"""The nodes of a shared cluster: groups of equal nodes, and when some of them are away."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from paceline.array_types import Bools, Ints
from paceline.errors import UserError, shorten
from paceline.hardware import Cluster, Device
from paceline.hardware import network as network_named
from paceline.hardware.catalogue import device as device_named
from paceline.hardware.leaf_switches import on_leaves, parse_oversubscription
from paceline.scheduling.placement import Placement, racks_of
from paceline.units import format_seconds

_GROUP = re.compile(r"^\s*(?:(\d{1,7})\s*[x×]\s*)?(\d{1,4})\s*(?:[x×]\s*|\s)\s*(\S.*?)\s*$")
MOST_DEVICES = 1 << 17
EXAMPLE = "give groups of nodes such as '16x4xT4' or '6x4xT4 + 3x8x2080Ti'"


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Equal nodes.

    Attributes:
        device: the type's name in the catalogue. ``nodes`` of ``devices_per_node`` each.
        network: between its nodes, such as ``50Gb/s``; empty: unknown.
        leaf_nodes: nodes of a rack, which lie below one leaf switch; 0: all nodes.
        oversubscription: bandwidth of a rack's nodes together / bandwidth of its links to other racks.
        price: dollars a device and hour; 0: unknown. ``watts``: of a device under load; 0: unknown.
        machine: what was measured of such devices; None: ``device`` is in the catalogue.
    """

    device: str
    nodes: int
    devices_per_node: int
    network: str = ""
    leaf_nodes: int = 0
    oversubscription: float = 1.0
    price: float = 0.0
    watts: float = 0.0
    machine: Cluster | None = field(default=None, compare=False)

    @property
    def devices(self) -> int:
        """Of all its nodes."""
        return self.nodes * self.devices_per_node

    @property
    def hardware(self) -> Device:
        """What is known of the device. Raises UserError for one that nobody knows."""
        return self.machine.device if self.machine is not None else device_named(self.device)

    @property
    def racks_text(self) -> str:
        """``racks of 4 nodes, 2:1``: with the oversubscription; empty: one rack."""
        return (
            f"racks of {self.leaf_nodes} node{'s' * (self.leaf_nodes > 1)}, {self.oversubscription:g}:1"
            if self.leaf_nodes
            else ""
        )

    def least_racks(self, nodes: int) -> int:
        """Racks that so many nodes lie in at least."""
        return -(-nodes // self.leaf_nodes) if self.leaf_nodes else 1

    def cluster(self, shape: Sequence[int], racks: int = 0) -> Cluster:
        """Some of its devices as the predictor sees them.

        Args:
            shape: devices of each node. ``racks``: that they lie in; 0: as few as can be. Racks that hold different numbers of
                nodes count as somewhat more racks that hold equally many. Other jobs have the rest of a rack's links.
        """
        nodes = len(shape)
        if self.machine is not None:
            between = {"network": network_named(self.network)} if self.network else {}
            cluster = self.machine.changed(devices_per_node=tuple(shape), num_nodes=nodes, **between)
        else:
            text = "+".join(map(str, shape)) if len(set(shape)) > 1 else f"{nodes}x{shape[0]}"
            cluster = Cluster.named(f"{text} {self.device}", self.network or None if nodes > 1 else None)
        least = max(racks, self.least_racks(nodes))
        if least <= 1 or self.oversubscription == 1:
            return cluster
        even = next(count for count in range(min(least, nodes), nodes + 1) if nodes % count == 0)
        return cluster.changed(leaf_nodes=nodes // even, oversubscription=self.oversubscription)


@dataclass(frozen=True, slots=True)
class Outage:
    """A node is away from ``start_s`` to ``end_s``: it failed (``planned`` false: jobs on it lose the work since their last
    checkpoint) or is maintained (jobs leave it before)."""

    node: int
    start_s: float
    end_s: float
    planned: bool = False


@dataclass(frozen=True)
class Fleet:
    """All nodes, numbered group after group.

    Attributes:
        names: of the nodes of a live schedule, by their numbers; empty: they are ``n0``, ``n1`` ...

    Raises:
        UserError: no group, two groups of one device and size, more than ``MOST_DEVICES`` devices, an outage of no node.
    """

    groups: tuple[NodeGroup, ...]
    outages: tuple[Outage, ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.groups:
            raise UserError("a cluster without nodes", EXAMPLE)
        devices = [group.device for group in self.groups]
        doubled = {name for name in devices if devices.count(name) > 1}
        if doubled:
            raise UserError(f"two groups of {sorted(doubled)[0]}", "write one group a device")
        if min(min(group.nodes, group.devices_per_node) for group in self.groups) < 1:
            raise UserError("a group of 0 devices", EXAMPLE)
        if self.devices > MOST_DEVICES:
            raise UserError(f"{self.devices:,} devices", f"at most {MOST_DEVICES:,} are simulated")
        for group in self.groups:
            if group.leaf_nodes or group.oversubscription != 1:
                on_leaves(group.cluster((group.devices_per_node,) * group.nodes, 1), group.leaf_nodes, group.oversubscription)
        last = len(self.node_types) - 1
        numbers = f"0 to {last}" if last else "0"
        for outage in self.outages:
            if not 0 <= outage.node < len(self.node_types) or not 0 <= outage.start_s < outage.end_s:
                raise UserError(
                    f"an outage of node {outage.node} from {format_seconds(outage.start_s)} to {format_seconds(outage.end_s)}",
                    f"nodes are {numbers}, and an outage ends after it starts",
                )

    @classmethod
    def named(cls, text: str, outages: Sequence[Outage] = ()) -> Fleet:
        """``16x4xT4`` is sixteen nodes of four; ``6x4xT4 + 3x8x2080Ti`` are two types; a network stands behind a comma.

        ``16x8xA100, 100Gb/s, leaf-nodes=4, oversubscription=2:1`` has racks of four nodes below a leaf switch. A type that has
        no more nodes than that lies in one rack.

        Raises:
            UserError: an unknown device or network; a group that is not written so; racks that change nothing, or are not full.
        """
        machines, *behind = text.split(",")
        leaves, network = _leaves(behind)
        if network:
            Cluster.named("2x1 T4", network)  # whether it is one; groups of one node do not use it
        groups = []
        for part in machines.split("+"):
            match = _GROUP.match(part)
            if match is None:
                raise UserError(f"cluster {shorten(text)!r}", EXAMPLE)
            nodes, size, name = match.groups()
            groups.append(NodeGroup(device_named(name).name, int(nodes or 1), int(size), network))
        several = [group.nodes > leaves[0] for group in groups]
        if leaves != (0, 1.0):
            racks = several if any(several) else [True] * len(groups)  # refused, as they change nothing
            groups = [
                replace(group, leaf_nodes=leaves[0], oversubscription=leaves[1]) if racked else group
                for group, racked in zip(groups, racks, strict=True)
            ]
        return cls(tuple(groups), tuple(outages))

    @property
    def devices(self) -> int:
        """Of all nodes."""
        return sum(group.devices for group in self.groups)

    @property
    def types(self) -> tuple[str, ...]:
        """Device types, in the order of the groups."""
        return tuple(group.device for group in self.groups)

    @cached_property
    def node_types(self) -> Ints:
        """The group of each node, by its number."""
        return np.repeat(np.arange(len(self.groups)), [group.nodes for group in self.groups])

    @cached_property
    def node_devices(self) -> Ints:
        """Devices of each node, by its number."""
        return np.repeat([group.devices_per_node for group in self.groups], [group.nodes for group in self.groups])

    def name(self, node: int) -> str:
        """A node's, by its number."""
        return self.names[node] if self.names else f"n{node}"

    def nodes_of(self, group: int) -> slice:
        """The numbers of a group's nodes."""
        first = sum(other.nodes for other in self.groups[:group])
        return slice(first, first + self.groups[group].nodes)

    @cached_property
    def _racked(self) -> bool:
        return any(group.leaf_nodes for group in self.groups)

    def crossed(self, placement: Placement) -> int:
        """The racks that a placement lies in, where it could lie in fewer; 0: it lies in as few as can be."""
        if not placement or not self._racked:
            return 0
        index = int(self.node_types[placement[0][0]])
        group, first = self.groups[index], self.nodes_of(index).start
        racks = racks_of(tuple((node - first, count) for node, count in placement), group.leaf_nodes)
        return racks if racks > group.least_racks(len(placement)) else 0

    def next_change(self, time_s: float) -> float:
        """When the next outage begins or ends after ``time_s``; infinite: never."""
        moments = (moment for outage in self.outages for moment in (outage.start_s, outage.end_s) if moment > time_s)
        return min(moments, default=math.inf)

    def up(self, time_s: float) -> Bools:
        """Which nodes are there at ``time_s``."""
        there = np.ones(len(self.node_types), bool)
        for outage in self.outages:
            if outage.start_s <= time_s < outage.end_s:
                there[outage.node] = False
        return there


def _leaves(parts: Sequence[str]) -> tuple[tuple[int, float], str]:
    """Nodes of a leaf switch with its oversubscription, and the network: what stands behind the machines. Raises UserError."""
    nodes, blocking, network = 0, 1.0, []
    for part in map(str.strip, parts):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            network.append(part)
        elif name == "leaf-nodes" and value.isdecimal():
            nodes = int(value)
        elif name == "oversubscription":
            blocking = parse_oversubscription(value)
        else:
            raise UserError(f"{shorten(part)!r} of a cluster", "write leaf-nodes=4, oversubscription=2:1")
    return (nodes, blocking), ", ".join(network)


__all__ = ["Fleet", "NodeGroup", "Outage"]
