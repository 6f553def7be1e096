"""Network between nodes, which two controls state: a speed or a link, and a transport."""

from __future__ import annotations

from paceline import hardware
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.instances import network_of
from paceline.hardware.networks import transport, transport_unsaid
from paceline.serve.selection import Selection, about


def network_text(chosen: Selection) -> str | None:
    """Return the network as one text, ``400Gb/s RoCE``; None without a network.

    The transport belongs to a speed. A link has its own. Raises ControlError if the two contradict each other.
    """
    text, carrier = chosen.get("network"), chosen.get("transport")
    if not carrier or int_nodes(chosen) == 1:
        return text
    with about("transport"):
        if text is None:
            raise UserError(f"transport {carrier} of no network", "give the network's speed: 400Gb/s")
        own = transport(text)
        link = None if own else hardware.network(text)
        if link is not None and transport_unsaid(link):
            return f"{speed_text(link)} {carrier}"
        has = own.name if own else link.transport if link else ""
        if has != carrier:
            speed = speed_text(hardware.network(_of_node(chosen, text))) if link else "its speed"
            raise UserError(f"network {text} is {has}, and the transport is {carrier}", f"give {speed} as the network")
    return text


def _of_node(chosen: Selection, text: str) -> str:
    """Return the network with the ports that such nodes have."""
    devices = chosen.get("devices-per-node", "1")
    return network_of(text, chosen["device"], int(devices)) if devices.isdecimal() and int(devices) else text


def int_nodes(chosen: Selection) -> int:
    """Return the number of nodes if it is a number; else 0."""
    text = chosen.get("nodes", "1")
    return int(text) if text.isascii() and text.isdecimal() else 0


def speed_text(link: hardware.Link) -> str:
    """Return the bandwidth of a link in the form of the slider: ``400Gb/s``."""
    return f"{link.bandwidth.value * 8e-9:g}Gb/s"


def stated(cluster: Cluster) -> tuple[str, str]:
    """Return speed and transport of the network between nodes; two empty texts for one node."""
    if cluster.num_nodes == 1:
        return "", ""
    return speed_text(cluster.network), cluster.network.transport
