"""Cluster of a job: devices, and the levels of links that join them, from the package out to the pod."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from paceline.errors import LARGEST_COUNT, UserError, check_count, shown, unknown
from paceline.hardware.catalogue import device as device_named
from paceline.hardware.catalogue import is_device
from paceline.hardware.catalogue import link as link_named
from paceline.hardware.device import Device, Fact, Link
from paceline.hardware.instances import instance
from paceline.hardware.instances import nodes as nodes_named
from paceline.hardware.levels import LEVELS, Level, leaves, tiers
from paceline.hardware.nics import Nic
from paceline.hardware.node_sizes import check_joined, node_counts
from paceline.hardware.placement import NodeSizes, Placement, Places, equal, sizes_text
from paceline.hardware.saved_clusters import check_slip, saved_cluster
from paceline.hardware.switches import Aggregation

MOST_DEVICES = 1 << 20
"""Largest number of devices that is predicted. It bounds time and memory, and no existing cluster has so many."""
MOST_IN_NODE = {"pcie": 16, "fabric": 64, "nvlink": 576, "ici": 9216}
"""Most devices that one link inside a node joins: 16 GPUs of a PCIe host (AWS p2.16xlarge), 576 GPUs in a domain of NVLink
switches (NVIDIA, GB200 NVL72), 9,216 chips of a TPU pod (Google, Ironwood, 2025). For fabrics, eight boards of eight devices
are assumed. Memory and loopback have no limit but the machine."""
LONGEST = 200
"""Characters of a cluster's name."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Cluster:
    """Equal devices in levels of links, innermost first: ``(Level("node", 8, nvlink), Level("pod", 4, infiniband))``.

    Attributes:
        nic: the compressing card of each node, if one was named; a strategy decides whether it is used (``codec_at``).
        aggregation: ability of the switches between nodes to add; None: nothing, unless the network's link ``reduces``.

    Raises:
        UserError: no level, a level with another name or out of order, a size below 1, more devices than the innermost link
            joins (``MOST_IN_NODE``) or than ``MOST_DEVICES``.
    """

    device: Device
    levels: tuple[Level, ...]
    nic: Nic | None = None
    aggregation: Aggregation | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.device, Device):
            raise UserError(f"device {shown(self.device)}", "give a paceline.hardware.Device, or use Cluster.named")
        if not isinstance(self.levels, tuple | list) or not all(isinstance(level, Level) for level in self.levels):
            raise UserError(f"levels {shown(self.levels)}", "give a tuple of paceline.hardware.Level, innermost first")
        if not isinstance(self.nic, Nic | None) or not isinstance(self.aggregation, Aggregation | None):
            raise UserError(
                f"{self.device.name} with another card or switch", "give hardware.nic(NAME), hardware.aggregation(NAME)"
            )
        object.__setattr__(self, "levels", tuple(self.levels))
        if not self.levels:
            raise UserError(f"a cluster of {self.device.name} has no level", "give at least one, such as a node")
        inner = replace(self.levels[0], size=equal(self.levels[0].size))
        object.__setattr__(self, "levels", (inner, *self.levels[1:]))
        for level in self.levels:
            if level.name not in LEVELS:
                raise unknown("level of a cluster", level.name, LEVELS)
            if isinstance(level.size, int) or level is not inner:
                check_count(level.size, f"members of a {level.name}")
            if not isinstance(level.link, Link):
                raise UserError(f"link {shown(level.link)} of a {level.name}", "give a paceline.hardware.Link")
            if not isinstance(level.oversubscription, int | float) or not 1 <= level.oversubscription < math.inf:
                raise UserError(f"oversubscription {shown(level.oversubscription)}", "give 1 or more, such as 2 for 2:1")
        if not isinstance(inner.size, int) and len(inner.size) != self._groups:
            raise UserError(f"{len(inner.size)} sizes of {self._groups} nodes", "give one for each node, such as (1, 7)")
        order = [LEVELS.index(level.name) for level in self.levels]
        if order != sorted(set(order)):
            raise UserError(f"levels {', '.join(level.name for level in self.levels)}", f"innermost first: {', '.join(LEVELS)}")
        inside = self._tiers[0] if len(self.levels) <= 2 else self.levels[0]
        most = inside.link.joins or MOST_IN_NODE.get(inside.link.kind, MOST_DEVICES)
        if inside.most > most:
            raise UserError(
                f"{inside.most:,} devices in a node: {inside.link.name} joins at most {most:,}",
                "give fewer devices a node and more nodes",
            )
        if self.world_size > MOST_DEVICES:
            raise UserError(f"{self.world_size:,} devices are more than can be predicted", f"give at most {MOST_DEVICES:,}")

    @classmethod
    def named(cls, text: str, network: str | None = None) -> Cluster:
        """Parse a cluster such as ``2x8 A100`` (two nodes of eight), ``1+7 A100`` (nodes of one and of seven), ``A100:8``,
        ``16 A100, 2 nodes`` or ``A100`` (``phrases.machine_phrase``), with a ``network`` between nodes such as ``100Gb/s``.
        Instances have their own network: ``2x p5.48xlarge`` (``instances.toml``). The network may be in the text, ``2x8 A100,
        100Gb/s``. A name in the user's ``clusters.toml`` means the text there.

        The link inside a node is the device's own. A single node needs no network. Devices beyond the largest node that is
        sold are several nodes: ``64 H100, 400Gb/s RoCE`` is ``8x8 H100, 400Gb/s RoCE``; ``1x64 H100`` is one node.

        Raises:
            UserError: unknown device or network, counts below 1, several nodes without a network, more devices than a node is
                sold with that are no whole nodes.
        """
        if not isinstance(text, str):
            raise UserError(f"cluster {text!r}", "give a text such as '2x8 A100', or a paceline.Cluster")
        if len(text) > LONGEST:
            raise UserError(f"cluster {shown(text)}", "give a text such as '2x8 A100'")
        from paceline.hardware.phrases.machine_phrase import machine_phrase  # with its vocabulary

        own = saved_cluster(text)
        said = machine_phrase(own.text if own else text)
        if said.network and network is not None and not own:
            raise UserError(f"{text!r} names a network, and so does {network!r}", "give one of them")
        network = said.network if network is None else network
        if not said.known:
            check_slip(text)
        devices, many = node_counts(said, network)
        check_joined(said.name, devices, many, network)
        return cluster(said.name, devices, many, network)

    @classmethod
    def of_nodes(
        cls,
        device: Device,
        devices_per_node: NodeSizes,
        num_nodes: int,
        intra_link: Link,
        network: Link | None = None,
        *,
        leaf_nodes: int = 0,
        oversubscription: float = 1.0,
    ) -> Cluster:
        """Return a cluster of ``num_nodes`` nodes of ``devices_per_node`` devices.

        Args:
            devices_per_node: one number, or one for each node.
            intra_link: between devices of one node, per device. ``network``: between nodes, per node, shared by its devices;
                by default the link inside.
            leaf_nodes: nodes of one leaf switch, whose links up have ``1 / oversubscription`` of the bandwidth down; 0: all
                nodes. A divisor of ``num_nodes``.
        """
        devices_per_node = equal(devices_per_node)
        sizes = () if isinstance(devices_per_node, tuple) else (("devices_per_node", devices_per_node),)
        for name, count in (*sizes, ("num_nodes", num_nodes), *((("leaf_nodes", leaf_nodes),) if leaf_nodes else ())):
            if type(count) is not int or count < 1:
                raise UserError(f"{name} is {shown(count)}", "give a whole number from 1 up")
            if count > LARGEST_COUNT:
                raise UserError(f"{name} is {shown(count)}", f"give at most {MOST_DEVICES:,}")
        outside = intra_link if network is None else network
        inside = Level("node", devices_per_node, intra_link)
        if oversubscription != 1 and not leaf_nodes:
            raise UserError(
                f"oversubscription {shown(oversubscription)} of no switch", "give leaf_nodes, nodes of a leaf switch"
            )
        if not leaf_nodes or leaf_nodes >= num_nodes or oversubscription == 1:
            return cls(device=device, levels=(inside, Level("pod", num_nodes, outside)))
        if num_nodes % leaf_nodes:
            raise UserError(
                f"{num_nodes} nodes are no whole leaf switches of {leaf_nodes}: only full ones are predicted",
                f"give a multiple of {leaf_nodes} nodes",
            )
        leaves = Level("pod", num_nodes // leaf_nodes, outside, oversubscription)
        return cls(device=device, levels=(inside, Level("rack", leaf_nodes, outside), leaves))

    def changed(self, **choices: Any) -> Cluster:
        """Return the cluster with other values of ``device``, ``devices_per_node``, ``num_nodes``, ``intra_link``, ``network``,
        ``leaf_nodes``, ``oversubscription``, ``nic`` or ``aggregation``.

        Raises:
            UserError: another name, an impossible value, another number of nodes of different sizes, a
                cluster of more levels than nodes, leaf switches and a network: give new ``levels``.
        """
        for name in choices:
            if name not in (*_OF_NODES, *_BESIDE_NODES):
                raise unknown("part of a cluster", name, (*_OF_NODES, *_BESIDE_NODES))
        beside = {name: choices.pop(name, getattr(self, name)) for name in _BESIDE_NODES}
        if not choices:
            return replace(self, **beside)
        if len(self.levels) > 2 and not self._of_leaves:
            raise UserError(f"a change of a cluster of {len(self.levels)} levels", "make a Cluster with other levels")
        if choices.get("num_nodes", self.num_nodes) != self.num_nodes and not (self.even or "devices_per_node" in choices):
            raise UserError(
                f"another number of nodes of {self.node_text} devices", "give the devices of each node too, or of all nodes"
            )
        parts = {name: getattr(self, name) for name in _OF_NODES}
        changed = Cluster.of_nodes(**parts | {"devices_per_node": self.levels[0].size} | choices)
        return replace(changed, **beside) if any(beside.values()) else changed

    @property
    def _groups(self) -> int:
        """Number of groups on the innermost level, which are nodes if that level is the node."""
        return prod(level.most for level in self.levels[1:])

    @property
    def _of_leaves(self) -> bool:
        """True if the levels are those that ``of_nodes`` makes."""
        names = tuple(level.name for level in self.levels)
        return names == ("node", "rack", "pod") and self.levels[1].link == self.levels[2].link and self.leaf_nodes > 0

    @cached_property
    def world_size(self) -> int:
        """Number of devices."""
        inner = self.levels[0].size
        return sum(inner) if isinstance(inner, tuple) else inner * self._groups

    @cached_property
    def _tiers(self) -> tuple[Level, ...]:
        return tiers(self.levels)

    @cached_property
    def _leaves(self) -> tuple[int, float]:
        return leaves(self.levels)

    @property
    def leaf_nodes(self) -> int:
        """Nodes of a leaf switch with fewer links up than down; 0 without such a switch."""
        return self._leaves[0]

    @property
    def oversubscription(self) -> float:
        """Total bandwidth of a leaf's nodes / bandwidth of the leaf's links up; 1 without such a leaf."""
        return self._leaves[1]

    def fills_leaves(self, num_nodes: int) -> bool:
        """Return whether a number of nodes fills whole leaf switches or fits below one."""
        return not self.leaf_nodes or num_nodes <= self.leaf_nodes or num_nodes % self.leaf_nodes == 0

    @property
    def even(self) -> bool:
        """True if all nodes hold the same number of devices."""
        return isinstance(self.levels[0].size, int)

    @property
    def node_text(self) -> str:
        """Devices per node as a text: ``8``, or ``1+7`` for unequal nodes."""
        return str(self.devices_per_node) if self.even else sizes_text(self.levels[0].size)

    @cached_property
    def node_sizes(self) -> tuple[int, ...]:
        """Number of devices of each node."""
        inner = self.levels[0].size
        return inner if isinstance(inner, tuple) else (self.devices_per_node,) * self.num_nodes

    @cached_property
    def unlike_sizes(self) -> tuple[int, ...]:
        """The different numbers of devices per node, ascending."""
        return (self.devices_per_node,) if self.even else tuple(sorted(set(self.node_sizes)))

    @cached_property
    def leaf_sizes(self) -> tuple[int, ...]:
        """Devices below each leaf switch; empty if no switch blocks."""
        nodes, leaf = self.node_sizes, self.leaf_nodes
        return tuple(sum(nodes[first : first + leaf]) for first in range(0, len(nodes), leaf)) if leaf else ()

    @cached_property
    def places(self) -> Places:
        """Placement of the ranks: a number if nodes are equal and no switch blocks."""
        if self.even and not self.leaf_nodes:
            return self.devices_per_node
        return Placement(self.devices_per_node if self.even else self.levels[0].size, self.leaf_nodes, self.oversubscription)

    @cached_property
    def devices_per_node(self) -> int:
        """Devices that the innermost link joins, in the largest node."""
        return self._tiers[0].most

    @property
    def num_nodes(self) -> int:
        """Number of groups of devices that the innermost link joins."""
        return self._tiers[1].most if len(self._tiers) > 1 else 1

    @property
    def intra_link(self) -> Link:
        """Link between devices of one node; bandwidth per device, one direction."""
        return self._tiers[0].link

    @property
    def network(self) -> Link:
        """Network between nodes; bandwidth per node, one direction, shared by its devices. With one node, the link inside
        it."""
        return self._tiers[-1].link

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what the user's words left open: the ports of a node, or the transport between nodes."""
        return (self.network.chosen,) if self.num_nodes > 1 and self.network.chosen else ()

    @property
    def outer_link(self) -> Link:
        """Network between nodes, or the link inside the node if there is only one."""
        return self.network if self.num_nodes > 1 else self.intra_link

    def __repr__(self) -> str:
        """Return one line, because a device and a link have dozens of numbers with their sources."""
        levels = ", ".join(f"{level.name} of {sizes_text(level.size)} by {level.link.name}" for level in self.levels)
        return f"Cluster({self.world_size} {self.device.name}: {levels})"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cluster:
        """Read ``dataclasses.asdict`` of a cluster, written by this version or by one without levels.

        Raises:
            UserError: it has another form.
        """
        try:
            return cls._read(data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"a cluster cannot be read: {type(error).__name__}: {error}", "measure it again") from None

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> Cluster:
        device = _facts(data["device"])
        for rates in ("peak_flops", "matmul_flops"):
            device[rates] = _facts(device[rates])
        if "levels" not in data:
            links = [Link(**_facts(data[name])) for name in ("intra_link", "network")]
            return cls.of_nodes(Device(**device), data["devices_per_node"], data["num_nodes"], *links)
        levels = (
            Level(level["name"], equal(level["size"]), Link(**_facts(level["link"])), level.get("oversubscription", 1.0))
            for level in data["levels"]
        )
        card, switch = data.get("nic"), data.get("aggregation")
        return cls(
            device=Device(**device),
            levels=tuple(levels),
            nic=Nic(**_facts(card)) if card else None,
            aggregation=Aggregation(**_facts(switch)) if switch else None,
        )


_OF_NODES = ("device", "devices_per_node", "num_nodes", "intra_link", "network", "leaf_nodes", "oversubscription")
_BESIDE_NODES = ("nic", "aggregation")


def cluster(
    device_name: str,
    devices_per_node: NodeSizes | None = None,
    num_nodes: int = 1,
    network_text: str | None = None,
    leaf_nodes: int = 0,
    oversubscription: float = 1.0,
) -> Cluster:
    """Return ``num_nodes`` nodes of ``devices_per_node`` devices, from texts as in ``device`` and ``network``. ``device_name``
    may be an instance (``p5.48xlarge``): its devices and its network are the defaults. Otherwise ``devices_per_node`` is 1 by
    default. The link inside a node is the device's own. A single node needs no network; its ``network`` is then that link.
    Other arguments as ``Cluster.of_nodes`` takes them.

    Raises:
        UserError: unknown device or network, a count below 1, or several nodes without a network.
    """
    if isinstance(device_name, str) and device_name.strip() and not is_device(device_name) and instance(device_name) is None:
        device_name, devices_per_node = _counted(device_name, devices_per_node)
    node, num_nodes = nodes_named(device_name, devices_per_node, num_nodes, network_text)
    device = device_named(node.device)
    between = node.between()
    if between is None and num_nodes > 1:
        raise UserError(f"{num_nodes} nodes have no network", "name one such as 'InfiniBand HDR' or 10Gb/s")
    return Cluster.of_nodes(
        device,
        node.devices,
        num_nodes,
        link_named(device.link),
        between,
        leaf_nodes=leaf_nodes,
        oversubscription=oversubscription,
    )


def _counted(text: str, devices: NodeSizes | None) -> tuple[str, NodeSizes | None]:
    """Split ``1CC 2x H100 80GB`` or ``H100:8`` into the device and its number; any other text stays as it is."""
    from paceline.hardware.phrases.machine_phrase import machine_phrase

    said = machine_phrase(text)
    count = said.count if said.per_node is None else said.per_node
    alone = said.known and said.nodes is None and said.network is None and devices in (None, count)
    return (said.name, count) if alone and count is not None else (text, devices)


def _facts(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry with its numbers as facts and its lists as tuples."""

    def read(value: Any) -> Any:
        if isinstance(value, dict) and set(value) == {"value", "source", "date"}:
            return Fact(**value)
        return tuple(value) if isinstance(value, list) else value

    return {name: read(value) for name, value in entry.items()}
