"""What a job runs on: devices, and the levels of links that join them, from the package out to the pod."""

from __future__ import annotations

import re
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
from paceline.hardware.instances import node_counts
from paceline.hardware.instances import nodes as nodes_named

MOST_DEVICES = 1 << 20
"""Largest number of devices that is predicted. It bounds time and memory, and no existing cluster has so many."""
MOST_IN_NODE = {"pcie": 16, "fabric": 64, "nvlink": 576, "ici": 9216}
"""Most devices that one link inside a node joins: 16 GPUs of a PCIe host (AWS p2.16xlarge), 576 GPUs in a domain of NVLink
switches (NVIDIA, GB200 NVL72), 9,216 chips of a TPU pod (Google, Ironwood, 2025). For fabrics, eight boards of eight devices
are assumed. Memory and loopback have no limit but the machine."""
LEVELS = ("package", "node", "rack", "pod", "site")
"""Names of levels, innermost first."""
LONGEST = 200
"""Characters of a cluster's name."""
_COUNTED = re.compile(r"^\s*(?:(\d{1,18})\s*[x×]\s*)?(?:(\d{1,18})\s*[x×\s]\s*)?(\S.*?)\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Level:
    """``size`` members of the level below (devices, for the innermost), joined by ``link``.

    The link's bandwidth is per member, in one direction. ``name``: one of ``LEVELS``.
    """

    name: str
    size: int
    link: Link


@dataclass(frozen=True, kw_only=True, repr=False)
class Cluster:
    """Equal devices in levels, innermost first: ``(Level("node", 8, nvlink), Level("pod", 4, infiniband))``.

    Raises:
        UserError: no level, a level with another name or out of order, a size below 1, more devices than the innermost link
            joins (``MOST_IN_NODE``) or than ``MOST_DEVICES``.
    """

    device: Device
    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.device, Device):
            raise UserError(f"device {shown(self.device)}", "give a paceline.hardware.Device, or use Cluster.named")
        if not isinstance(self.levels, tuple | list) or not all(isinstance(level, Level) for level in self.levels):
            raise UserError(f"levels {shown(self.levels)}", "give a tuple of paceline.hardware.Level, innermost first")
        object.__setattr__(self, "levels", tuple(self.levels))
        if not self.levels:
            raise UserError(f"a cluster of {self.device.name} has no level", "give at least one, such as a node")
        for level in self.levels:
            if level.name not in LEVELS:
                raise unknown("level of a cluster", level.name, LEVELS)
            check_count(level.size, f"members of a {level.name}")
            if not isinstance(level.link, Link):
                raise UserError(f"link {shown(level.link)} of a {level.name}", "give a paceline.hardware.Link")
        order = [LEVELS.index(level.name) for level in self.levels]
        if order != sorted(set(order)):
            raise UserError(f"levels {', '.join(level.name for level in self.levels)}", f"innermost first: {', '.join(LEVELS)}")
        inside = self._tiers[0] if len(self.levels) <= 2 else self.levels[0]
        most = MOST_IN_NODE.get(inside.link.kind, MOST_DEVICES)
        if inside.size > most:
            raise UserError(
                f"{inside.size:,} devices in a node: {inside.link.name} joins at most {most:,}",
                "give fewer devices a node and more nodes",
            )
        if self.world_size > MOST_DEVICES:
            raise UserError(f"{self.world_size:,} devices are more than can be predicted", f"give at most {MOST_DEVICES:,}")

    @classmethod
    def named(cls, text: str, network: str | None = None) -> Cluster:
        """``2x8 A100`` (two nodes of eight), ``8 A100`` or ``A100``, with a ``network`` between nodes such as ``100Gb/s``; or
        instances with their own network, ``2x p5.48xlarge`` (``instances.toml``).

        The link inside a node is the device's own. A single node needs no network.

        Raises:
            UserError: unknown device or network, counts below 1, several nodes without a network.
        """
        if not isinstance(text, str):
            raise UserError(f"cluster {text!r}", "give a text such as '2x8 A100', or a paceline.Cluster")
        if len(text) > LONGEST:
            raise UserError(f"cluster {shown(text)}", "give a text such as '2x8 A100'")
        counted = _COUNTED.match(text)
        if counted is None:
            raise UserError("a cluster without a name", "give one such as '2x8 A100'")
        outer, inner, name = counted.groups()
        if outer is not None and inner is None:  # "8xA100": devices of one node
            outer, inner = None, outer
        if inner is not None and outer is None and is_device(text):  # "2080 Ti" is a name
            inner, name = None, text
        return cluster(name, *node_counts(name, outer, inner), network)

    @classmethod
    def of_nodes(
        cls, device: Device, devices_per_node: int, num_nodes: int, intra_link: Link, network: Link | None = None
    ) -> Cluster:
        """``num_nodes`` nodes of ``devices_per_node`` devices.

        Args:
            intra_link: between devices of one node, per device. ``network``: between nodes, per node, shared by its devices;
                by default the link inside.
        """
        for name, count in (("devices_per_node", devices_per_node), ("num_nodes", num_nodes)):
            if type(count) is not int or count < 1:
                raise UserError(f"{name} is {shown(count)}", "give a whole number from 1 up")
            if count > LARGEST_COUNT:
                raise UserError(f"{name} is {shown(count)}", f"give at most {MOST_DEVICES:,}")
        outside = intra_link if network is None else network
        return cls(device=device, levels=(Level("node", devices_per_node, intra_link), Level("pod", num_nodes, outside)))

    def changed(self, **choices: Any) -> Cluster:
        """The same with other values of ``device``, ``devices_per_node``, ``num_nodes``, ``intra_link`` or ``network``.

        Raises:
            UserError: another name, a value that cannot be, a cluster of more than two levels: give new ``levels``.
        """
        for name in choices:
            if name not in _OF_NODES:
                raise unknown("part of a cluster", name, _OF_NODES)
        if len(self.levels) > 2:
            raise UserError(f"a change of a cluster of {len(self.levels)} levels", "make a Cluster with other levels")
        return Cluster.of_nodes(**{name: getattr(self, name) for name in _OF_NODES} | choices)

    @cached_property
    def world_size(self) -> int:
        """Number of devices."""
        return prod(level.size for level in self.levels)

    @cached_property
    def _tiers(self) -> tuple[Level, ...]:
        """The levels as the exchange sees them. With more than two, levels of size 1 go and neighbours with one link join."""
        if len(self.levels) <= 2:
            return self.levels
        tiers: list[Level] = []
        for level in self.levels:
            if level.size == 1:
                continue
            if tiers and tiers[-1].link == level.link:
                tiers[-1] = replace(tiers[-1], size=tiers[-1].size * level.size)
            else:
                tiers.append(level)
        if len(tiers) > 2:
            kinds = ", ".join(f"{tier.link.name} in the {tier.name}" for tier in tiers)
            raise UserError(f"a cluster of {len(tiers)} kinds of links ({kinds})", "two are predicted: join levels of one link")
        return tuple(tiers) or self.levels[:1]

    @property
    def devices_per_node(self) -> int:
        """Devices that the innermost link joins."""
        return self._tiers[0].size

    @property
    def num_nodes(self) -> int:
        """Groups of such devices."""
        return self._tiers[1].size if len(self._tiers) > 1 else 1

    @property
    def intra_link(self) -> Link:
        """Between devices of one node; bandwidth per device, one direction."""
        return self._tiers[0].link

    @property
    def network(self) -> Link:
        """Between nodes; bandwidth per node, one direction, shared by the node's devices. With one node, the link inside it."""
        return self._tiers[-1].link

    @property
    def outer_link(self) -> Link:
        """The network between the nodes; the link inside the node where there is but one."""
        return self.network if self.num_nodes > 1 else self.intra_link

    def __repr__(self) -> str:
        """One line: a device and a link have dozens of numbers with their sources."""
        levels = ", ".join(f"{level.name} of {level.size} by {level.link.name}" for level in self.levels)
        return f"Cluster({self.world_size} {self.device.name}: {levels})"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cluster:
        """From ``dataclasses.asdict`` of a cluster, written by this version or by one before levels.

        Raises:
            UserError: it is not what was written.
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
        levels = (Level(level["name"], level["size"], Link(**_facts(level["link"]))) for level in data["levels"])
        return cls(device=Device(**device), levels=tuple(levels))


_OF_NODES = ("device", "devices_per_node", "num_nodes", "intra_link", "network")


def cluster(
    device_name: str, devices_per_node: int | None = None, num_nodes: int = 1, network_text: str | None = None
) -> Cluster:
    """``num_nodes`` nodes of ``devices_per_node`` devices, from texts as ``device`` and ``network`` take them.

    ``device_name`` may be an instance (``p5.48xlarge``): its devices and its network are taken where none is given. Else
    ``devices_per_node`` is 1 where it is not given. The link inside a node is the device's own. A single node needs no
    network; its ``network`` is then that link.

    Raises:
        UserError: unknown device or network, a count below 1, or several nodes without a network.
    """
    node, num_nodes = nodes_named(device_name, devices_per_node, num_nodes, network_text)
    device = device_named(node.device)
    between = node.between()
    if between is None and num_nodes > 1:
        raise UserError(f"{num_nodes} nodes have no network", "name one such as 'InfiniBand HDR' or 10Gb/s")
    return Cluster.of_nodes(device, node.devices, num_nodes, link_named(device.link), between)


def _facts(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry with its numbers as facts and its lists as tuples."""

    def read(value: Any) -> Any:
        if isinstance(value, dict) and set(value) == {"value", "source", "date"}:
            return Fact(**value)
        return tuple(value) if isinstance(value, list) else value

    return {name: read(value) for name, value in entry.items()}
