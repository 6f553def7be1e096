"""Which device each node of a live schedule has, and the fleet that policies see."""

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
"""The name of devices that nobody named; no speed of theirs is predicted."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """The devices of the nodes whose names match a pattern such as ``gpu-a*``.

    Attributes:
        machine: what a probe measured of them; None: the catalogue has them, or nobody knows them.
    """

    pattern: str
    device: str
    machine: Cluster | None = None


@dataclass(frozen=True, slots=True)
class LiveNodes:
    """What is known of the nodes beside their names and sizes.

    Attributes:
        kinds: the first whose pattern matches a node counts. ``network``: between nodes; empty: unknown.
    """

    kinds: tuple[DeviceKind, ...] = ()
    network: str = ""

    @classmethod
    def named(cls, texts: Sequence[str], network: str = "", own: Mapping[str, str] | None = None) -> LiveNodes:
        """From words such as ``A100``, ``gpu-a*=A100`` or ``probe.json``.

        Args:
            own: devices that the executor knows, by node; what is named counts before them.

        Raises:
            UserError: a device that is not in the catalogue, a file that is no probe, no network of that name.
        """
        if network:
            network_named(network)
        named = [_kind(text) for text in texts]
        return cls((*named, *(DeviceKind(node, name) for node, name in (own or {}).items())), network)

    def kind(self, node: str) -> DeviceKind:
        """Of a node."""
        return next((kind for kind in self.kinds if fnmatchcase(node, kind.pattern)), DeviceKind("*", UNKNOWN))

    @classmethod
    def noted(cls, patterns: Iterable[Sequence[str]]) -> LiveNodes:
        """From what ``patterns`` gave."""
        return cls(tuple(DeviceKind(pattern, name) for pattern, name in patterns))

    @property
    def patterns(self) -> list[tuple[str, str]]:
        """Pattern and device of each kind, as a journal notes them."""
        return [(kind.pattern, kind.device) for kind in self.kinds]

    def by_device(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Nodes by their device, in the order of a fleet."""
        groups: dict[str, list[str]] = {}
        for name in sorted(names):
            groups.setdefault(self.kind(name).device, []).append(name)
        return groups

    def fleet(self, nodes: Mapping[str, int]) -> tuple[Fleet, list[str]]:
        """The nodes as policies see them, and their names in the fleet's order. Nodes of a type count as large as its largest;
        what is free of each is said beside it.

        Args:
            nodes: their devices by name; at least one.
        """
        groups, names = [], []
        for members in self.by_device(nodes).values():
            kind, largest = self.kind(members[0]), max(nodes[name] for name in members)
            groups.append(NodeGroup.of(kind.device, len(members), largest, self.network, machine=kind.machine))
            names += members
        return Fleet(tuple(groups)), names

    def check_patterns(self, names: Collection[str]) -> None:
        """Raises UserError for a pattern that no node matches."""
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


__all__ = ["UNKNOWN", "DeviceKind", "LiveNodes"]
