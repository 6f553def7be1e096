"""Device types of the nodes of a live schedule, and the fleet they form."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from paceline.calibration.records import is_probe, machine
from paceline.errors import UserError, shorten
from paceline.hardware import Cluster
from paceline.hardware import network as network_named
from paceline.hardware.catalogue import device
from paceline.scheduling.fleet import Fleet, NodeGroup

UNKNOWN = "device"
"""Name of unspecified devices. No speed is predicted on them."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Device of the nodes whose names match a pattern such as ``gpu-a*``.

    Attributes:
        machine: measurements of a probe; None: the device is in the catalogue, or unknown.
    """

    pattern: str
    device: str
    machine: Cluster | None = None


@dataclass(frozen=True, slots=True)
class LiveNodes:
    """Device types and network of the nodes.

    Attributes:
        kinds: patterns; the first that matches a node applies.
        network: network between nodes; empty: unknown.
    """

    kinds: tuple[DeviceKind, ...] = ()
    network: str = ""

    @classmethod
    def named(cls, texts: Sequence[str], network: str = "", own: Mapping[str, str] | None = None) -> LiveNodes:
        """Parse texts such as ``A100``, ``gpu-a*=A100`` or ``probe.json``.

        Args:
            own: devices known to the executor, by node. ``texts`` take precedence.

        Raises:
            UserError: a device that is not in the catalogue, a file that is no probe, an unknown network.
        """
        if network:
            network_named(network)
        named = [_kind(text) for text in texts]
        return cls((*named, *(DeviceKind(node, name) for node, name in (own or {}).items())), network)

    def kind(self, node: str) -> DeviceKind:
        """Return the device of a node."""
        return next((kind for kind in self.kinds if fnmatchcase(node, kind.pattern)), DeviceKind("*", UNKNOWN))

    @classmethod
    def noted(cls, patterns: Iterable[Sequence[str]]) -> LiveNodes:
        """Restore the nodes from ``patterns``."""
        return cls(tuple(DeviceKind(pattern, name) for pattern, name in patterns))

    @property
    def patterns(self) -> list[tuple[str, str]]:
        """Pattern and device of each kind, as a journal records them."""
        return [(kind.pattern, kind.device) for kind in self.kinds]

    def by_device(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Nodes by device, in the order of a fleet."""
        groups: dict[str, list[str]] = {}
        for name in sorted(names):
            groups.setdefault(self.kind(name).device, []).append(name)
        return groups

    def fleet(self, nodes: Mapping[str, int]) -> tuple[Fleet, list[str]]:
        """Fleet of the nodes, and their names in its order.

        Nodes of a type count as large as the largest; the state has the free devices.

        Args:
            nodes: devices by node name, at least one.
        """
        groups, names = [], []
        for members in self.by_device(nodes).values():
            kind, largest = self.kind(members[0]), max(nodes[name] for name in members)
            groups.append(NodeGroup.of(kind.device, len(members), largest, self.network, machine=kind.machine))
            names += members
        return Fleet(tuple(groups)), names

    def check_patterns(self, names: Collection[str]) -> None:
        """Raise UserError for a pattern that matches no node."""
        for kind in self.kinds:
            if not any(fnmatchcase(name, kind.pattern) for name in names):
                few = ", ".join(sorted(names)[:3])
                raise UserError(
                    f"no node matches {kind.pattern!r} of a `device`", f"the nodes are {few}{' ...' * (len(names) > 3)}"
                )


def _kind(text: str) -> DeviceKind:
    pattern, equals, name = text.rpartition("=")
    if (equals and not pattern.strip()) or not name.strip():
        raise UserError(f"`device` {shorten(text)!r}", "write A100, NODES=A100 with a pattern such as gpu-*, or a probe's file")
    pattern, name = pattern.strip() or "*", name.strip()
    if is_probe(name):
        probed = machine([Path(name)])
        return DeviceKind(pattern, probed.device.name, probed)
    return DeviceKind(pattern, device(name).name)
