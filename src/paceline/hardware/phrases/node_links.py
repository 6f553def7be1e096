"""Links of a node that a phrase leaves open: the ports of ``InfiniBand NDR``, the transport of ``100GbE``.

A network by the name of its port is what such nodes have (``node_links.toml``): eight ports at eight H100. Ethernet by its name
runs over RoCE on GPU instances of clouds, and over TCP elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import TYPE_CHECKING

from paceline.errors import UserError
from paceline.hardware.catalogue import known_link, load
from paceline.hardware.device import Device, Link
from paceline.hardware.device_rows import source_text
from paceline.hardware.networks import network as network_named
from paceline.hardware.networks import transport, transport_unsaid
from paceline.units import format_bandwidth

if TYPE_CHECKING:
    from paceline.hardware.phrases.link_phrase import LinkPhrase

_BY_PORT = ("InfiniBand", "Slingshot")
"""Transports whose links are ports of a node, by name."""


@dataclass(frozen=True, slots=True)
class NodePorts:
    """Ports of a node as sold: ``ports`` of the link ``port`` at ``size`` devices, as ``system`` has."""

    system: str
    size: int
    ports: int
    port: str
    source: str

    def at(self, devices: int) -> int:
        """Return the ports of a node of that many devices."""
        return max(1, ceil(devices * self.ports / self.size))


@dataclass(frozen=True, slots=True)
class StatedLink:
    """Text of a network that leaves nothing open, and a sentence about what was chosen; empty if all was stated."""

    text: str
    chosen: str = ""


def stated_link(text: str, device: Device, devices: int, *, cloud: bool = False) -> StatedLink:
    """Return the network between nodes that a phrase means on nodes of such devices.

    Args:
        devices: devices of the largest node. ``cloud``: whether the node is a provider's instance.

    Raises:
        UserError: a link inside a node; InfiniBand without a speed where such nodes have none.
    """
    from paceline.hardware.phrases.link_phrase import link_phrase  # with its vocabulary

    said = link_phrase(text)
    if said.inside:
        raise UserError(
            f"{said.text} is a link inside a node, and nodes are joined by a network",
            "give one such as 'InfiniBand NDR' or '100Gb/s RoCE'",
        )
    if said.per_device:
        return StatedLink(f"{devices * max(1, said.count)}x {said.text}" if devices > 1 else said.text)
    if said.count:
        return _over(f"{said.count}x {said.text}", said, cloud)
    ports = node_ports().get(device.board)
    single = known_link(said.text)
    if single is None and transport(said.text) is not None:
        carrier = transport(said.text)
        if ports is None or carrier is None or not ports.port.startswith(carrier.name):
            return StatedLink(said.text)
        single = network_named(ports.port)
    if single is None and said.port:
        single = network_named(said.text)
    if single is not None and single.transport in _BY_PORT:
        return _at_node(single, ports, device, devices)
    return _over(said.text, said, cloud)


def _at_node(single: Link, ports: NodePorts | None, device: Device, devices: int) -> StatedLink:
    """Return the ports of a node with that link."""
    count = ports.at(devices) if ports else 1
    if count == 1 or ports is None:
        said = f"Network: 1x {single.name} a node, as named (else --network '4x {single.name}')."
        return StatedLink(f"1x {single.name}", said if devices > 1 else "")
    like = "like" if devices == ports.size else "in proportion to"
    said = f"Network: {count}x {single.name}, {like} {ports.system} (else --network '1x {single.name}')."
    return StatedLink(f"{count}x {single.name}", said)


def _over(text: str, said: LinkPhrase, cloud: bool) -> StatedLink:
    """Return an Ethernet by name with the transport that people use on it."""
    if not said.ethernet:
        return StatedLink(text)
    link = network_named(text)
    if not transport_unsaid(link):
        return StatedLink(text)
    carrier, other = ("RoCE", "TCP") if cloud else ("TCP", "RoCE")
    count, rate = said.count or 1, format_bandwidth(link.bandwidth.value / (said.count or 1))
    named, instead = (f"{f'{count}x ' if count > 1 else ''}{rate.replace(' ', '')} {name}" for name in (carrier, other))
    where = "in clouds" if cloud else "outside clouds"
    return StatedLink(named, f"Network: Ethernet over {carrier}, as usual {where} (else --network '{instead}').")


def counted_text(link: Link) -> str:
    """Return the name of a network as ``Cluster.named`` reads the same network again: one port is ``1x InfiniBand NDR``."""
    single = known_link(link.name)
    if single is not None and single.transport in _BY_PORT:
        return f"1x {link.name}"
    return link.name.removeprefix("Ethernet ") if transport_unsaid(link) else link.name


@cache
def node_ports() -> Mapping[str, NodePorts]:
    """Return the ports of nodes by the names of their devices."""
    data = load("phrases/node_links.toml")
    return {
        name: NodePorts(row["system"], row["size"], row["ports"], row["port"], source_text(data["sources"][row["source"]]))
        for row in data["node"]
        for name in row["devices"]
    }
