"""State of a lab, seen from inside: interface counters, links, and missing parts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from paceline.lab import card, journal, kernel, slurm
from paceline.lab.card import CardCounters
from paceline.lab.journal import LabState
from paceline.lab.kernel import CommandFailed
from paceline.lab.topology import Topology


@dataclass(frozen=True)
class Counters:
    """Traffic at a host's end of its cable since the lab started, in bytes and packets counted by the kernel.

    The bytes include Ethernet, IP and TCP headers. If the kernel passes several segments as one (GSO, on by default),
    they count as one packet with one header: bytes are then within 0.5 % of those that the sockets sent.
    """

    host: int
    address: str
    tx_bytes: int
    tx_packets: int
    rx_bytes: int
    rx_packets: int


@dataclass(frozen=True)
class LabStatus:
    """State of a lab at one moment. ``links`` has ``up``, ``cut`` or ``gone`` per host; ``lacking`` lists missing parts.

    ``slurm`` has Slurm's state of each host's node, empty without Slurm. ``cards`` has the counters of each host's
    network card, None for one that does not work; empty without cards.
    """

    state: LabState
    links: tuple[str, ...]
    counters: tuple[Counters | None, ...]
    lacking: tuple[str, ...]
    slurm: tuple[str, ...] = ()
    cards: tuple[CardCounters | None, ...] = ()

    @property
    def complete(self) -> bool:
        """True if all created parts still exist, including links that were cut on purpose."""
        return not self.lacking

    def to_json(self) -> dict[str, Any]:
        """Plain data: link in bytes/s each way, latency in seconds each way, since in seconds of the epoch."""
        topology = self.state.topology
        hosts = [
            {
                "host": number,
                "address": address,
                "link": self.links[number],
                **({"slurm": self.slurm[number]} if self.slurm else {}),
                **_numbers(self.counters[number]),
                **({"nic": _numbers(self.cards[number])} if self.cards else {}),
            }
            for number, address in enumerate(topology.addresses)
        ]
        shown = {
            "name": topology.name,
            "loopback": topology.link is None,
            "link_bytes_per_s": topology.link,
            "latency_s": topology.latency,
            "slurm_slots": topology.slots,
            "switch_adds": topology.adds,
            "nic": topology.nic,
            "nic_ports": topology.nic_ports,
            "mtu": topology.mtu,
            "ipv6": topology.ipv6,
        }
        end = {"since": self.state.since, "complete": self.complete, "lacking": list(self.lacking)}
        return {**shown, "hosts": hosts, **end}


def read_counters(state: LabState, host: int) -> Counters:
    """Read the counters of one host in its namespace. Raises CommandFailed."""
    return _host_counters(state, host)[1]


def read_status(state: LabState) -> LabStatus:
    """Read the state of every part of the lab."""
    topology, lacking = state.topology, [] if state.phase == "up" else ["its making was cut short"]
    links: list[str] = []
    counters: list[Counters | None] = []
    if topology.link is not None and not kernel.is_alive(topology.switch, state.namespaces.get(topology.switch)):
        lacking.append(f"the switch ({topology.switch})")
    for host, address in enumerate(topology.addresses):
        if topology.link is None:
            links.append("up")
            counters.append(None)
            continue
        name = topology.namespace(host)
        try:
            if not kernel.is_alive(name, state.namespaces.get(name)):
                raise CommandFailed(f"its namespace {name}")
            link, count = _host_counters(state, host)
            if not _is_shaped(name, topology.wire) or (link == "up" and not _is_shaped(topology.switch, f"p{host}")):
                raise CommandFailed("the token bucket of its link")
            links.append(link)
            counters.append(count)
        except CommandFailed as error:
            links.append("gone")
            counters.append(None)
            lacking.append(f"host {host} ({address}): {error}")
    nodes = _read_slurm(state, links, lacking) if topology.slots else ()
    cards = read_cards(topology) if topology.nic else ()
    lacking += [f"the network card of host {host}" for host, one in enumerate(cards) if one is None and links[host] == "up"]
    return LabStatus(state, tuple(links), tuple(counters), tuple(lacking), nodes, cards)


def read_cards(topology: Topology) -> tuple[CardCounters | None, ...]:
    """Return the counters of every host's network card; None for a card that does not work."""
    directory = journal.card_directory(topology.name)
    faults = [card.fault(topology, directory, host) for host in range(topology.hosts)]
    return tuple(None if faults[host] else card.read(directory, host) for host in range(topology.hosts))


def _read_slurm(state: LabState, links: list[str], lacking: list[str]) -> tuple[str, ...]:
    """Return the state of each host's node, and extend ``lacking``. A host whose cable was cut on purpose is not missing."""
    topology, directory = state.topology, journal.slurm_directory(state.topology.name)
    off = {f"slurmd of host {host}" for host, link in enumerate(links) if link == "cut"}
    lacking += [daemon for daemon in slurm.lacking(topology, directory) if daemon not in off]
    try:
        states = slurm.node_states(topology, directory)
    except CommandFailed:
        states = {}
    return tuple(states.get(f"h{host}", "unknown") for host in range(topology.hosts))


def _host_counters(state: LabState, host: int) -> tuple[str, Counters]:
    topology = state.topology
    shown = kernel.system_json(("ip", "-j", "-s", "-n", topology.namespace(host), "link", "show", "dev", topology.wire))
    try:
        tx, rx = (shown[0]["stats64"][direction] for direction in ("tx", "rx"))
        link = "up" if "LOWER_UP" in shown[0]["flags"] else "cut"
        numbers = (int(tx["bytes"]), int(tx["packets"]), int(rx["bytes"]), int(rx["packets"]))
        return link, Counters(host, topology.address(host), *numbers)
    except (KeyError, IndexError, TypeError) as error:
        raise CommandFailed(f"its interface {topology.wire}") from error


def _is_shaped(namespace: str, interface: str) -> bool:
    kinds = [item.get("kind") for item in kernel.system_json(("tc", "-j", "-n", namespace, "qdisc", "show", "dev", interface))]
    return "tbf" in kinds


def _numbers(counters: Counters | CardCounters | None) -> dict[str, Any]:
    return {k: v for k, v in asdict(counters).items() if k not in ("host", "address")} if counters else {}
