"""Look-up of hardware by its spelling in files of measurements; None if the catalogue lacks it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

from paceline.hardware.catalogue import link
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device, Link
from paceline.hardware.instances import device_in
from paceline.hardware.networks import described
from paceline.hardware.networks import network as find_network
from paceline.hardware.placement import NodeSizes

NVLINK_DOMAIN = {"GB200": 72, "GB300": 72}
"""Devices that one domain of NVLink switches joins (NVIDIA, GB200 NVL72, GB300 NVL72)."""
_DGX_NETWORK = (
    ("V100", "4x InfiniBand EDR"),
    ("A100", "8x InfiniBand HDR"),
    ("B300", "16x InfiniBand NDR"),
    ("", "8x InfiniBand NDR"),
)
"""Between nodes of NVIDIA's own systems, after its data sheets: DGX-1, DGX A100, DGX B300 (800 Gb/s a GPU), DGX H100 and B200.
Other vendors' nodes of eight have eight ports of 400 Gb/s too."""
_PORTS_PER_DEVICE = {"GB200": 1, "GB300": 2}
"""Ports of 400 Gb/s for each device of an NVLink domain (NVIDIA, DGX GB200 and DGX GB300 data sheets)."""


@cache
def device(text: str) -> Device | None:
    """Return the device that ``text`` names, as ``hardware.instances.device_in`` reads it."""
    return device_in(text)


@cache
def network(text: str, devices: int = 1) -> Link | None:
    """Return the network between nodes that a description names, as ``hardware.networks.described`` reads it."""
    return described(text, devices)


def cluster(device: Device, per_node: NodeSizes, nodes: int, between: Link | str | None = None, inside: str = "") -> Cluster:
    """Return ``nodes`` nodes of ``per_node`` devices (one, or one for each), linked by the device's own link or ``inside``."""
    intra = link(inside or device.link)
    between_nodes = find_network(between) if isinstance(between, str) else between or intra
    if nodes == 1:
        between_nodes = intra
    return Cluster.of_nodes(device, per_node, nodes, intra, between_nodes)


def domain(device: Device, devices: int, per_node: int) -> tuple[int, int]:
    """Return the devices that links inside a node join, and the number of groups: nodes of an NVLink domain are one group.

    ``per_node`` devices share a host, and ``devices`` is a multiple of it.
    """
    most = NVLINK_DOMAIN.get(device.name, per_node)
    size = max((n for n in range(per_node, most + 1, per_node) if devices % n == 0), default=per_node)
    return size, devices // size


def side_by_side(link: Link, count: int) -> Link:
    """Return the network of ``count`` nodes in one domain, whose bandwidths add."""
    return replace(link, name=f"{count}x {link.name}", bandwidth=replace(link.bandwidth, value=count * link.bandwidth.value))


def reference_system(device: Device, devices: int, per_node: int = 8) -> Cluster | None:
    """Return ``devices`` in nodes as their vendor builds them, with the network; None if the nodes would not be full.

    These are NVIDIA's own systems, boards of eight of other vendors, and TPUs in a torus.
    """
    if device.kind == "tpu":
        return torus(device, devices)
    host = min(devices, 4 if device.name in NVLINK_DOMAIN else per_node)
    if devices % host:
        return None
    size, groups = domain(device, devices, host)
    if ports := _PORTS_PER_DEVICE.get(device.name):
        between = f"{size * ports}x InfiniBand NDR"
    else:
        between = next(link for name, link in _DGX_NETWORK if name in device.name)
    return cluster(device, size, groups, between if groups > 1 else None)


def torus(device: Device, devices: int) -> Cluster:
    """Return the devices in a torus as square as possible, for any number of hosts: rows are nodes of the same link."""
    rows = next(n for n in range(math.isqrt(devices), 0, -1) if devices % n == 0)
    row = devices // rows
    grid = cluster(device, row, rows)
    across = replace(grid.intra_link.bandwidth, value=row * grid.intra_link.bandwidth.value)
    return grid.changed(network=replace(grid.intra_link, name=f"{grid.intra_link.name} of a row", bandwidth=across))


@cache
def network_named(text: str) -> Link:
    """Return the catalogue's network of that name. Raises UserError for an unknown one."""
    return find_network(text)
