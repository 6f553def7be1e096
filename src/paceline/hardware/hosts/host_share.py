"""Hosts: processors, memory and host links of a node, and the part of them that each of its devices gets.

``hosts.toml`` has the hosts, each with its sources. Devices name theirs (``Device.host``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import ceil
from types import MappingProxyType
from typing import Any

from paceline.errors import UserError
from paceline.hardware.catalogue import link
from paceline.hardware.device import Device, Fact, Link
from paceline.hardware.device_rows import fact


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSystem:
    """Processors and memory of a node.

    Attributes:
        devices: devices of such a node.
        memory_bandwidth: bytes/s of all memory channels together.
        memory: bytes, as such a node is usually built.
        cores: physical cores.
        uplink: devices that share one link to the processors.
        each: True if each such number of devices of a node has a separate host, as in a superchip.
        larger: name of the host of a node with more devices; empty if this one is used for any number.
        source: text of the source of ``devices`` and ``uplink``.
    """

    name: str
    devices: int
    memory_bandwidth: Fact
    memory: Fact
    cores: int
    uplink: int = 1
    each: bool = False
    larger: str = ""
    source: str = ""

    def sharers(self, devices: int) -> int:
        """Return the number of equal parts of a host that ``devices`` of a node use: fewer devices than it has are a slice."""
        return self.devices if self.each else max(devices, self.devices)

    def node_memory(self, devices: int) -> float:
        """Return the bytes of all hosts of a node with ``devices``."""
        return self.memory.value * (ceil(devices / self.devices) if self.each else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShare:
    """Part of a host that one device of a node gets while all of them use it.

    Attributes:
        host: name of the host; empty if only the device states a rate.
        memory_bandwidth: bytes/s of the host's memory for this device.
        cores: cores for this device.
        link: link to the host's memory. ``link_share``: share of it while all devices copy.
        ranks: devices of the node.
    """

    host: str
    memory_bandwidth: float
    cores: float
    link: Link
    link_share: float = 1.0
    ranks: int = 1


@cache
def hosts() -> Mapping[str, HostSystem]:
    """Return all hosts by name. The reader of TOML is imported only in this function."""
    import tomllib

    data = tomllib.loads(files("paceline.hardware.hosts").joinpath("hosts.toml").read_text(encoding="utf-8"))
    return MappingProxyType({row["name"]: _host(row, data["sources"]) for row in data["host"]})


def _host(row: Mapping[str, Any], sources: Mapping[str, Any]) -> HostSystem:
    origin = fact({"value": row["devices"], "source": row["source"]}, sources).source
    facts = {name: fact(row[name], sources) for name in ("memory_bandwidth", "memory")}
    return HostSystem(**{**row, **facts, "source": origin})


def host_of(device: Device, devices: int = 1) -> HostSystem | None:
    """Return the usual host of a node with ``devices`` of a device; None if the catalogue has none."""
    found = hosts().get(device.host)
    while found is not None and found.larger and devices > found.uplink:
        found = hosts()[found.larger]
    return found


def missing_host(device: Device) -> str:
    """Return the fact of a device's host that the catalogue lacks; empty if it has all."""
    if not device.host_link:
        return "link to the host"
    return "" if device.host_bandwidth is not None or device.host in hosts() else "host"


def host_share(device: Device, devices: int = 1) -> HostShare:
    """Return the part of the host that a device gets if ``devices`` of its node use it at once.

    A device that states ``host_bandwidth`` gets that.

    Raises:
        UserError: the catalogue lacks the host.
    """
    if lacks := missing_host(device):
        raise UserError(f"the {lacks} of {device.name} is not in the catalogue", "name a device that has it, such as A100")
    own, over = host_of(device, devices), link(device.host_link)
    stated = device.host_bandwidth
    if own is None:
        assert stated is not None
        return HostShare(host="", memory_bandwidth=stated.value, cores=1.0, link=over, ranks=devices)
    parts = own.sharers(devices)
    return HostShare(
        host=own.name,
        memory_bandwidth=own.memory_bandwidth.value / parts if stated is None else stated.value,
        cores=own.cores / parts,
        link=over,
        link_share=1 / min(devices, own.uplink),
        ranks=min(devices, own.devices) if own.each else devices,
    )
