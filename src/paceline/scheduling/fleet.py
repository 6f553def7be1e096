"""Fleet of a shared cluster: clusters of equal nodes, and outages of single nodes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from paceline.array_types import Bools, Ints
from paceline.errors import UserError, shorten
from paceline.hardware import Cluster, Device, Fact, Link
from paceline.hardware import network as network_named
from paceline.hardware.catalogue import device as device_named
from paceline.hardware.catalogue import is_device
from paceline.hardware.catalogue import link as link_named
from paceline.hardware.cluster import MOST_IN_NODE
from paceline.hardware.instances import instance, network_of
from paceline.hardware.leaf_switches import on_leaves, parse_oversubscription
from paceline.hardware.phrases.node_links import counted_text
from paceline.hardware.prices import of_devices, price
from paceline.scheduling.mig_slices import slice_type
from paceline.scheduling.placement import Placement, racks_of
from paceline.units import format_seconds

_GROUP = re.compile(r"^\s*(?:(\d{1,7})\s*[x×]\s*)?(\d{1,4})\s*(?:[x×]\s*|\s)\s*(\S.*?)\s*$")
MOST_DEVICES = 1 << 17
_UNKNOWN = Fact(0.0, "unknown", "")
EXAMPLE = "give groups of nodes such as '16x4xT4' or '6x4xT4 + 3x8x2080Ti'"


UNKNOWN_NETWORK = Link(name="unknown network", kind="ethernet", bandwidth=_UNKNOWN, latency=_UNKNOWN)
"""Network between nodes that nothing names. No step over it is predicted."""
UNKNOWN_LINK = Link(name="unknown link", kind="memory", bandwidth=_UNKNOWN, latency=_UNKNOWN)
"""Link inside a node of an unknown device, or of more devices than the device's own link joins."""


@dataclass(frozen=True)
class NodeGroup:
    """A cluster of equal nodes in a fleet, with its costs.

    Attributes:
        cluster: device, nodes, links and racks.
        network: name of the network between the nodes, such as ``50Gb/s``; empty: unknown.
        price: dollars a device and hour; 0: unknown.
        watts: power of a device under load; 0: unknown.
        probed: True if the cluster was measured by a probe, and its device need not be in the catalogue.
    """

    cluster: Cluster
    network: str = ""
    price: float = 0.0
    watts: float = 0.0
    probed: bool = field(default=False, compare=False)

    @classmethod
    def of(
        cls,
        device: str,
        nodes: int,
        devices_per_node: int,
        network: str = "",
        *,
        leaf_nodes: int = 0,
        oversubscription: float = 1.0,
        price: float = 0.0,
        watts: float = 0.0,
        machine: Cluster | None = None,
    ) -> NodeGroup:
        """Return a group of ``nodes`` nodes of ``devices_per_node`` devices.

        Args:
            device: name in the catalogue. Jobs on a device with another name are not predicted.
            leaf_nodes: nodes of a rack, below one leaf switch; 0: one rack. ``oversubscription``: bandwidth of a rack's nodes
                together / bandwidth of its links to other racks.
            machine: probed machine that represents the nodes; None: the catalogue describes the device.

        Raises:
            UserError: a count below 1, an unknown network, racks that change nothing or are not full.
        """
        if min(nodes, devices_per_node) < 1:
            raise UserError("a group of 0 devices", EXAMPLE)
        between = network_named(network_of(network, device, devices_per_node)) if network else UNKNOWN_NETWORK
        if machine is not None:
            links = {"network": between} if network else {}
            cluster = machine.changed(devices_per_node=devices_per_node, num_nodes=nodes, **links)
        else:
            known = device_named(device) if is_device(device) else _unknown_device(device)
            cluster = Cluster.of_nodes(known, devices_per_node, nodes, _inside(known, devices_per_node), between)
        if leaf_nodes or oversubscription != 1:
            if nodes > 1 and not network and machine is None:
                raise UserError(f"{nodes} nodes have no network", "name one such as 'InfiniBand HDR' or 10Gb/s")
            cluster = on_leaves(cluster, leaf_nodes, oversubscription)
        return cls(cluster, network, price, watts, machine is not None)

    @cached_property
    def device(self) -> str:
        """Name of the device."""
        return self.cluster.device.name

    @cached_property
    def nodes(self) -> int:
        """Number of nodes."""
        return prod(level.most for level in self.cluster.levels[1:])

    @cached_property
    def devices_per_node(self) -> int:
        """Devices of a node."""
        return self.cluster.levels[0].most

    @cached_property
    def devices(self) -> int:
        """Devices of all nodes."""
        return self.cluster.world_size

    @cached_property
    def leaf_nodes(self) -> int:
        """Nodes of a rack, below one leaf switch; 0: all nodes are in one rack."""
        return self.cluster.leaf_nodes

    @cached_property
    def oversubscription(self) -> float:
        """Bandwidth of a rack's nodes together / bandwidth of its links to other racks."""
        return self.cluster.oversubscription

    @property
    def hardware(self) -> Device:
        """Data of the device. Raises UserError if it is unknown."""
        return self.cluster.device if self.probed else device_named(self.device)

    @property
    def racks_text(self) -> str:
        """Description of the racks, ``racks of 4 nodes, 2:1``, with the oversubscription; empty for one rack."""
        plural = "s" * (self.leaf_nodes > 1)
        return f"racks of {self.leaf_nodes} node{plural}, {self.oversubscription:g}:1" if self.leaf_nodes else ""

    def least_racks(self, nodes: int) -> int:
        """Return the fewest racks that hold this number of nodes."""
        return -(-nodes // self.leaf_nodes) if self.leaf_nodes else 1

    def resized(self, nodes: int) -> NodeGroup:
        """Return the group with another number of nodes, in one rack if a rack holds them.

        Raises:
            UserError: racks that are not full.
        """
        racked = nodes > self.leaf_nodes
        leaf_nodes, oversubscription = (self.leaf_nodes, self.oversubscription) if racked else (0, 1.0)
        return self._changed(num_nodes=nodes, leaf_nodes=leaf_nodes, oversubscription=oversubscription)

    def joined(self, network: str) -> NodeGroup:
        """Return the group with another network between the nodes. Raises UserError for an unknown network."""
        said = network_of(network, self.device, self.cluster.devices_per_node)
        return replace(self._changed(network=network_named(said)), network=network)

    def _changed(self, **choices: Any) -> NodeGroup:
        return replace(self, cluster=self.cluster.changed(**choices))

    def part(self, shape: Sequence[int], racks: int = 0) -> Cluster:
        """Return some of the devices as a cluster for the predictor.

        Args:
            shape: devices on each node.
            racks: racks that hold the nodes; 0: as few as possible. If racks would hold different numbers of nodes, the next
                larger number of equal racks is assumed. Other jobs use the rest of the links of a rack.
        """
        nodes = len(shape)
        if self.probed:
            cluster = self.cluster.changed(devices_per_node=tuple(shape), num_nodes=nodes, leaf_nodes=0, oversubscription=1.0)
        else:
            text = "+".join(map(str, shape)) if len(set(shape)) > 1 else f"{nodes}x{shape[0]}"
            between = counted_text(self.cluster.network) if self.network and nodes > 1 else None
            cluster = Cluster.named(f"{text} {self.device}", between)
        least = max(racks, self.least_racks(nodes))
        if least <= 1 or self.oversubscription == 1:
            return cluster
        even = next(count for count in range(min(least, nodes), nodes + 1) if nodes % count == 0)
        return cluster.changed(leaf_nodes=nodes // even, oversubscription=self.oversubscription)

    def to_json(self) -> dict[str, Any]:
        """Return the arguments of ``of`` that differ from their defaults."""
        values = {
            "device": self.device,
            "nodes": self.nodes,
            "devices_per_node": self.devices_per_node,
            "network": self.network,
            "leaf_nodes": self.leaf_nodes,
            "oversubscription": self.oversubscription,
            "price": self.price,
            "watts": self.watts,
        }
        return {name: value for name, value in values.items() if value != _DEFAULTS.get(name)}


_DEFAULTS = {"network": "", "leaf_nodes": 0, "oversubscription": 1.0, "price": 0.0, "watts": 0.0}


def _unknown_device(name: str) -> Device:
    return Device(name=name, kind="accelerator", peak_flops={}, memory=_UNKNOWN, memory_bandwidth=_UNKNOWN, link="")


def _inside(device: Device, devices_per_node: int) -> Link:
    """Return the link inside a node."""
    own = link_named(device.link) if device.link else UNKNOWN_LINK
    return own if devices_per_node <= MOST_IN_NODE.get(own.kind, devices_per_node) else UNKNOWN_LINK


@dataclass(frozen=True, slots=True)
class Outage:
    """Period in which a node is away.

    Attributes:
        planned: True for maintenance, before which jobs leave the node. False for a failure, after which jobs on it lose the
            work since their last checkpoint.
    """

    node: int
    start_s: float
    end_s: float
    planned: bool = False


@dataclass(frozen=True)
class Fleet:
    """All nodes of a shared cluster, numbered group after group.

    Attributes:
        groups: clusters of equal nodes, one per device type.
        outages: periods in which nodes are away.
        names: names of the nodes of a live schedule, by number; empty: ``n0``, ``n1`` ...

    Raises:
        UserError: no group, two groups of one device, more than ``MOST_DEVICES`` devices, an outage of an unknown node.
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
        if self.devices > MOST_DEVICES:
            raise UserError(f"{self.devices:,} devices", f"at most {MOST_DEVICES:,} are simulated")
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
        """Parse a fleet such as ``16x4xT4``: sixteen nodes of four T4.

        ``6x4xT4 + 3x8x2080Ti`` has two types. ``2x8xA100 7x1g.5gb`` has nodes of 56 slices (``mig_slices``). A network follows
        a comma. ``16x8xA100, 100Gb/s, leaf-nodes=4, oversubscription=2:1`` has racks of four nodes below a leaf switch. A type
        with no more nodes than that is in one rack.

        Raises:
            UserError: an unknown device or network, a group in another form, racks that change nothing or are not full.
        """
        machines, *behind = text.split(",")
        (leaf_nodes, oversubscription), network = _leaves(behind)
        named = []
        for part in machines.split("+"):
            match = _GROUP.match(part)
            if match is None:
                raise UserError(f"cluster {shorten(text)!r}", EXAMPLE)
            nodes, size, name = match.groups()
            slices = slice_type(name)
            each = int(size) * max(slices.count, 1) if slices else int(size)
            named.append((slices.name if slices else device_named(name).name, int(nodes or 1), each))
        larger = any(nodes > leaf_nodes for _, nodes, _ in named)
        groups = []
        for name, count, size in named:
            racked = count > leaf_nodes or not larger  # racks that change nothing are refused
            rack, width = (leaf_nodes, oversubscription) if racked else (0, 1.0)
            groups.append(NodeGroup.of(name, count, size, network, leaf_nodes=rack, oversubscription=width))
        return cls(tuple(groups), tuple(outages))

    @property
    def devices(self) -> int:
        """Devices of all nodes."""
        return sum(group.devices for group in self.groups)

    @property
    def types(self) -> tuple[str, ...]:
        """Device types, in the order of the groups."""
        return tuple(group.device for group in self.groups)

    @cached_property
    def node_types(self) -> Ints:
        """Group of each node, by its number."""
        return np.repeat(np.arange(len(self.groups)), [group.nodes for group in self.groups])

    @cached_property
    def node_devices(self) -> Ints:
        """Devices of each node, by its number."""
        return np.repeat([group.devices_per_node for group in self.groups], [group.nodes for group in self.groups])

    def name(self, node: int) -> str:
        """Return the name of a node."""
        return self.names[node] if self.names else f"n{node}"

    def nodes_of(self, group: int) -> slice:
        """Return the numbers of the nodes of a group."""
        first = sum(other.nodes for other in self.groups[:group])
        return slice(first, first + self.groups[group].nodes)

    @cached_property
    def _racked(self) -> bool:
        return any(group.leaf_nodes for group in self.groups)

    def crossed(self, placement: Placement) -> int:
        """Return the number of racks of a placement that could span fewer; 0 if it spans as few as possible."""
        if not placement or not self._racked:
            return 0
        index = int(self.node_types[placement[0][0]])
        group, first = self.groups[index], self.nodes_of(index).start
        racks = racks_of(tuple((node - first, count) for node, count in placement), group.leaf_nodes)
        return racks if racks > group.least_racks(len(placement)) else 0

    def next_change(self, time_s: float) -> float:
        """Return the time of the next start or end of an outage after ``time_s``; inf if there is none."""
        moments = (moment for outage in self.outages for moment in (outage.start_s, outage.end_s) if moment > time_s)
        return min(moments, default=math.inf)

    def up(self, time_s: float) -> Bools:
        """Return a mask of the nodes that are up at ``time_s``."""
        there = np.ones(len(self.node_types), bool)
        for outage in self.outages:
            if outage.start_s <= time_s < outage.end_s:
                there[outage.node] = False
        return there


def _leaves(parts: Sequence[str]) -> tuple[tuple[int, float], str]:
    """Parse text after the machines: nodes of a leaf switch with its oversubscription, and the network. Raises UserError."""
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


def with_costs(fleet: Fleet, prices: Mapping[str, float] | None = None) -> tuple[Fleet, tuple[str, ...]]:
    """Return the fleet with its known prices and power, and a sentence with the source of each device type.

    Args:
        prices: dollars a device and hour by device, used before the listed prices; ``""``: of the only type.

    Raises:
        UserError: a price without a device where there are several types, or of a device that no node has.
    """
    own = of_devices(prices or {}, fleet.types)
    for name in own or ():
        rented = instance(name)
        whole = {slices.device for slices in map(slice_type, fleet.types) if slices}
        if (rented.device if rented else name) not in {*fleet.types, *whole}:
            raise UserError(f"a price of {shorten(name, 40)}", f"price what the cluster has: {', '.join(fleet.types)}")
    groups = [_with_costs(group, own) for group in fleet.groups]
    return replace(fleet, groups=tuple(group for group, _ in groups)), tuple(sentence for _, sentence in groups)


def _with_costs(group: NodeGroup, own: Mapping[str, float] | None) -> tuple[NodeGroup, str]:
    slices = slice_type(group.device)
    name, part = (slices.device, slices.part) if slices else (group.device, 1.0)
    power, listing = device_named(name).power, price(name, own)
    usd, watts = group.price, group.watts
    words = [f"${usd:g} an hour" if usd else "", f"{watts:g} W" if watts else ""]
    if not usd and listing:
        usd = listing.usd_per_device_hour * part
        words[0] = f"${usd:.4g} an hour ({listing.listed})" if slices else f"${usd:g} an hour ({listing.listed})"
    if not watts and power:
        watts, words[1] = power.value * part, f"{power.value * part:.4g} W, its board's limit"
    known = [words[0] or "price unknown", words[1] or "power unknown"]
    return replace(group, price=usd, watts=watts), f"{group.device}: {'; '.join(known)}."
