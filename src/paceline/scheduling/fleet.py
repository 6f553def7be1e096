"""The nodes of a shared cluster: groups of equal nodes, and when some of them are away."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paceline.array_types import Bools, Ints
from paceline.errors import UserError, shorten
from paceline.hardware.catalogue import device as device_named

_GROUP = re.compile(r"^\s*(?:(\d{1,7})\s*[x×]\s*)?(\d{1,4})\s*(?:[x×]\s*|\s)\s*(\S.*?)\s*$")
MOST_DEVICES = 1 << 17
EXAMPLE = "give groups of nodes such as '16x4xT4' or '6x4xT4 + 3x8x2080Ti'"


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Equal nodes.

    Attributes:
        device: the type's name in the catalogue. ``nodes`` of ``devices_per_node`` each.
        network: between its nodes, such as ``50Gb/s``; empty: unknown.
        nodes_per_rack: 0: one rack.
        price: dollars a device and hour; 0: unknown. ``watts``: of a device under load; 0: unknown.
    """

    device: str
    nodes: int
    devices_per_node: int
    network: str = ""
    nodes_per_rack: int = 0
    price: float = 0.0
    watts: float = 0.0

    @property
    def devices(self) -> int:
        """Of all its nodes."""
        return self.nodes * self.devices_per_node


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

    Raises:
        UserError: no group, two groups of one device and size, more than ``MOST_DEVICES`` devices, an outage of no node.
    """

    groups: tuple[NodeGroup, ...]
    outages: tuple[Outage, ...] = ()

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
        for outage in self.outages:
            if not 0 <= outage.node < len(self.node_types) or not 0 <= outage.start_s < outage.end_s:
                raise UserError(
                    f"an outage of node {outage.node} from {outage.start_s:g} to {outage.end_s:g} s",
                    f"nodes are 0 to {len(self.node_types) - 1}, and an outage ends after it starts",
                )

    @classmethod
    def named(cls, text: str, outages: Sequence[Outage] = ()) -> Fleet:
        """``16x4xT4`` is sixteen nodes of four; ``6x4xT4 + 3x8x2080Ti`` are two types; a network stands behind a comma.

        Raises:
            UserError: an unknown device; a group that is not written so.
        """
        machines, _, network = text.partition(",")
        groups = []
        for part in machines.split("+"):
            match = _GROUP.match(part)
            if match is None:
                raise UserError(f"cluster {shorten(text)!r}", EXAMPLE)
            nodes, size, name = match.groups()
            groups.append(NodeGroup(device_named(name).name, int(nodes or 1), int(size), network.strip()))
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

    def nodes_of(self, group: int) -> slice:
        """The numbers of a group's nodes."""
        first = sum(other.nodes for other in self.groups[:group])
        return slice(first, first + self.groups[group].nodes)

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


__all__ = ["Fleet", "NodeGroup", "Outage"]
