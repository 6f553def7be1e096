"""Hardware as files of measurements spell it, found in the catalogue; None where the catalogue has no such thing."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache

from paceline.errors import UserError
from paceline.hardware.catalogue import device as find_device
from paceline.hardware.catalogue import link
from paceline.hardware.catalogue import network as find_network
from paceline.hardware.cluster import Cluster
from paceline.hardware.cluster import cluster as make_cluster
from paceline.hardware.device import Device, Link

_PROVIDER = re.compile(r"^(lambda\s*cloud|lambda|aws|gcp|azure)[\s_-]+", re.IGNORECASE)
_COUNT = re.compile(r"^[0-9]+\s*x\s*", re.IGNORECASE)
_BRACKETS = re.compile(r"\(.*?\)")
_PORTS = re.compile(r"\s*(?:([0-9]+)\s*x\s*)?([^,+:;]*?)([0-9]+(?:\.[0-9]+)?)\s*(?:Gb(?!E)|G\b|Gbps|GbE)", re.IGNORECASE)
_INFINIBAND = re.compile(r"infiniband|\bib\b|\b[eh]dr|\bndr", re.IGNORECASE)


@cache
def device(text: str) -> Device | None:
    """The device that ``text`` names, as it stands or without what is in brackets, the count and the owner."""
    plain = _PROVIDER.sub("", _COUNT.sub("", _PROVIDER.sub("", _BRACKETS.sub("", text.replace("_", " ")).strip())))
    for name in (text, plain):
        try:
            return find_device(name)
        except UserError:
            continue
    return None


@cache
def network(text: str) -> Link | None:
    """The network between nodes that the words of a system description name: ``Compute: 8x ConnectX-6 IB HDR 200Gb/Sec``.

    Ports named for storage or management do not count; several ports of one speed add up.
    """
    best: Link | None = None
    for part in re.split(r",(?=\s*[A-Z]\w+:)|\+(?=\s)|\s(?=Compute:)", text):
        if re.match(r"\s*(storage|management)", part, re.IGNORECASE) and "compute" not in part.casefold():
            continue
        for count, words, speed in _PORTS.findall(part):
            kind = {100.0: "InfiniBand EDR", 200.0: "InfiniBand HDR", 400.0: "InfiniBand NDR"}.get(float(speed))
            name = kind if kind and _INFINIBAND.search(words + part) else f"{float(speed):g}Gb/s"
            try:
                link_of_part = find_network(f"{count}x {name}" if count else name)
            except UserError:
                continue
            if best is None or link_of_part.bandwidth.value > best.bandwidth.value:
                best = link_of_part
    return best


def cluster(device: Device, per_node: int, nodes: int, between: Link | str | None = None, inside: str = "") -> Cluster:
    """``nodes`` nodes of ``per_node`` devices, the links inside a node the device's own unless ``inside`` names one."""
    one_node = make_cluster(device.name, per_node, 1)
    intra = link(inside) if inside else one_node.intra_link
    between_nodes = find_network(between) if isinstance(between, str) else between or intra
    if nodes == 1:
        between_nodes = intra
    return Cluster.of_nodes(device, per_node, nodes, intra, between_nodes)


def torus(device: Device, devices: int) -> Cluster:
    """Devices in a torus as square as their number allows, however many hosts drive it: rows are nodes of the same link."""
    rows = next(n for n in range(math.isqrt(devices), 0, -1) if devices % n == 0)
    row = devices // rows
    grid = cluster(device, row, rows)
    across = replace(grid.intra_link.bandwidth, value=row * grid.intra_link.bandwidth.value)
    return grid.changed(network=replace(grid.intra_link, name=f"{grid.intra_link.name} of a row", bandwidth=across))


@cache
def network_named(text: str) -> Link:
    """The catalogue's network. Raises UserError."""
    return find_network(text)
