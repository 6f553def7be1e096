"""Look-up of hardware by its spelling in files of measurements; None if the catalogue lacks it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from paceline.errors import UserError
from paceline.hardware.catalogue import link
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device, Link
from paceline.hardware.instances import device_in
from paceline.hardware.networks import network as find_network
from paceline.hardware.placement import NodeSizes

_PORTS = re.compile(
    r"\s*(?:([0-9]+)\s*[x×]\s*)?([^,+:;]*?)(?<![\d.])([0-9]+(?:\.[0-9]+)?)\s*(Gb(?!E)|G\b|Gbps|GbE)(\s*/\s*s)?"
    r"(?=([^,+;]*))",
    re.IGNORECASE,
)
_PORT_SPEEDS = (10.0, 25.0, 40.0, 50.0, 100.0, 200.0, 400.0, 800.0)
"""Gb/s of a port: who writes "100 GB/s Ethernet" means such a port. Any other number of GB/s is of bytes."""
_RDMA_FROM = 200.0
"""Gb/s of a port from which submissions use RDMA, though they do not say so."""
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
_TERABITS = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s*(?:Tb/s|Tbps|Tbit/s)", re.IGNORECASE)
_FABRICS = (("slingshot", "Slingshot 11", "200Gb/s RoCE"), ("omni-?path", "Omni-Path", "100Gb/s RoCE"))
"""Fabrics by name: what the catalogue calls them, and a port of their speed (HPE, Slingshot 11; Omni-Path 100 Series)."""
_INSIDE = re.compile(r"nvlink|nvswitch|pcie|gpu-pcie", re.IGNORECASE)
_INFINIBAND = re.compile(r"infiniband|\bib\b|\b[eh]dr|\bndr", re.IGNORECASE)


@cache
def device(text: str) -> Device | None:
    """Return the device that ``text`` names, as ``hardware.instances.device_in`` reads it."""
    return device_in(text)


@cache
def network(text: str, devices: int = 1) -> Link | None:
    """Return the network between nodes named in a description: ``Compute: 8x ConnectX-6 IB HDR 200Gb/Sec``, ``4 x 100 Gb/s
    RoCE a node``, ``InfiniBand 100 Gb/s (1 x EDR)``, ``HPE Slingshot-11``.

    Ports named for storage or management do not count; several ports of one speed add up.

    Args:
        devices: devices of a node. Each has a port of a fabric without a stated number of ports, and of ports ``per GPU``.
    """
    text = _TERABITS.sub(lambda found: f"{1000 * float(found[1]):g} Gb/s", text.replace("，", ", "))
    for word, name, port in _FABRICS:
        if matched := re.search(rf"(?:(\d+)\s*x?\s*)?(?:[a-z]+\s+){{0,2}}{word}", text, re.IGNORECASE):
            ports = matched[1] or devices
            return _linked(f"{ports}x {name}") or _linked(f"{ports}x {port}")
    found = [link for part in re.split(r",(?=\s*[A-Z]\w+:)|\+(?=\s)|\s(?=Compute:)", text) for link in _ports(part, devices)]
    return max(found, key=lambda link: link.bandwidth.value, default=None)


def _ports(part: str, devices: int) -> Iterator[Link]:
    """Yield the networks of the ports in a part of a description."""
    if re.match(r"\s*(storage|management)", part, re.IGNORECASE) and "compute" not in part.casefold():
        return
    for count, words, speed, unit, per_second, behind in _PORTS.findall(part):
        if _INSIDE.search(words) or (unit == "GB" and not per_second):  # a link inside the node, or a size of memory
            continue
        kind = {100.0: "InfiniBand EDR", 200.0: "InfiniBand HDR", 400.0: "InfiniBand NDR"}.get(float(speed))
        is_bytes = unit.startswith("GB") and float(speed) not in _PORT_SPEEDS
        name = kind if kind and _INFINIBAND.search(words + part) else f"{float(speed):g}{'GB/s' if is_bytes else 'Gb/s'}"
        if name[0].isdigit():
            efa = re.search(r"\befa\b", part, re.IGNORECASE)
            rdma = float(speed) >= _RDMA_FROM or re.search(r"roce|rdma", part, re.IGNORECASE)
            name += " EFA" if efa else " RoCE" if rdma else ""
        ports = int(count or (matched[1] if (matched := re.match(r"\s*\((\d+)\s*x", behind)) else 1))
        if re.match(r"\s*(per|a|each)\s*(gpu|device|chip)", behind, re.IGNORECASE):
            ports *= devices
        if link := _linked(f"{ports}x {name}" if ports > 1 else name):
            yield link


def _linked(text: str) -> Link | None:
    try:
        return find_network(text)
    except UserError:
        return None


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
