"""Parts of a lab as plain data: its names, its addresses, and the commands that make it.

Everything is in namespaces of the lab. One of them, the switch, holds the bridge and one end of every cable. So the user's
network keeps its interfaces, and deleting the namespaces deletes the whole lab.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.errors import UserError
from paceline.lab.card_spec import parse_card
from paceline.units import format_bandwidth, format_seconds, parse_bandwidth, parse_seconds

PREFIX = "paceline-"
INTERFACE = "pl0"
"""The interface of every host: a name that no device of the machine has, because /sys still shows the machine's own."""
WIRE = "w0"
"""A host's end of its cable where the host has a network card: the card's, without an address."""
NETNS = "/var/run/netns"
"""Directory of iproute2's named namespaces."""
MAX_HOSTS = 250
MAX_SLOTS = 1024
MIN_LINK = 125e3
BURST_S = 1e-3
"""Depth of a bucket in seconds of the link: rate / HZ at HZ = 1000. docs/lab.md has the measurements."""
MIN_BURST = 70_000
"""One packet of the largest size that TCP hands down (64 KiB and the headers of its segments), so that it stays whole."""
QUEUE_S = 20e-3
"""Size of a port's queue, in seconds of the link."""
MIN_QUEUE = 1_000_000
NETEM_PACKETS = 100_000
MTU, LEAST_MTU, MOST_MTU = 1500, 1280, 9216
TAP_FRAMES = 10_000
"""Packets that may wait for a card; receive_window bounds those of a host in flight, so no packet is dropped."""
MIN_WINDOW, MOST_WINDOW = 512 << 10, 32 << 20
MARK_DSCP = "0x0a"
"""ToS 0x28 (Li et al., MICRO 2018, section VI-B) without its two ECN bits."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?")
_NO_IPV6 = 'for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do [ -e "$f" ] && echo 1 > "$f"; done 2>/dev/null; true'
Command = tuple[str, ...]


@dataclass(frozen=True)
class Topology:
    """The hosts of one lab and the link of each host.

    ``link`` is in bytes/s each way, or None for loopback, which is unshaped. ``latency`` is in seconds each way, or None.
    ``slots`` is the number of CPUs that Slurm gives out on each host; 0 for a lab without Slurm. ``adds``: whether the switch
    adds the gradients of a job (exchange ``switch``). ``nic`` is the specification of the network cards (card_spec.py), empty
    for a lab without cards; ``nic_ports`` the TCP ports whose packets each host marks for its card, ``20000-30000``. ``mtu`` is
    in bytes of an IP packet; ``ipv6`` is True if hosts have IPv6 addresses too.
    """

    name: str
    hosts: int
    link: float | None
    latency: float | None = None
    slots: int = 0
    adds: bool = False
    nic: str = ""
    nic_ports: str = ""
    mtu: int = MTU
    ipv6: bool = False

    @property
    def wire(self) -> str:
        """Return the interface at the host's end of its cable, which is the host's own or the card's."""
        return WIRE if self.nic else INTERFACE

    @property
    def switch(self) -> str:
        """Name of the namespace that holds the bridge."""
        return f"{PREFIX}{self.name}-switch"

    def namespace(self, host: int) -> str:
        """Return the name of a host's namespace."""
        return f"{PREFIX}{self.name}-h{host}"

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Names of all namespaces of the lab, the switch first, then the hosts; empty for loopback."""
        return () if self.link is None else (self.switch, *(self.namespace(h) for h in range(self.hosts)))

    def address(self, host: int) -> str:
        """Return a host's IPv4 address. Several labs may use the same addresses, because no packet leaves the namespaces."""
        return "127.0.0.1" if self.link is None else f"10.77.0.{host + 1}"

    def address6(self, host: int) -> str:
        """Return a host's IPv6 address; only labs with IPv6 have one."""
        return f"fd77::{host + 1:x}"

    @property
    def head(self) -> str:
        """Address of the switch, where Slurm's controller runs and gradients are added."""
        return "127.0.0.1" if self.link is None else f"10.77.0.{MAX_HOSTS + 1}"

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of all hosts, in order."""
        return tuple(self.address(h) for h in range(self.hosts))

    def commands(self) -> list[Command]:
        """Return the commands that turn empty namespaces into the lab, in order."""
        commands: list[Command] = [quiet(namespace) for namespace in self.namespaces]
        commands += [
            ("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge", "stp_state", "0", "mcast_snooping", "0"),
            ("ip", "-n", self.switch, "link", "set", "br0", "up"),
        ]
        if self.slots or self.adds:
            commands += [
                ("ip", "-n", self.switch, "addr", "add", f"{self.head}/24", "dev", "br0"),
                ("ip", "-n", self.switch, "link", "set", "lo", "up"),
            ]
        for host in range(self.hosts):
            host_name, port = self.namespace(host), f"p{host}"
            commands += [
                ("ip", "-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", self.wire, "netns", host_name),
                *(self._card(host_name) if self.nic else ()),
                *(self._large_packets(host_name, port) if self.mtu != MTU else ()),
                ("ip", "-n", host_name, "addr", "add", f"{self.address(host)}/24", "dev", INTERFACE),
                *self.shape(host_name, self.wire, delay=True),
                *self.shape(self.switch, port),
                ("ip", "-n", self.switch, "link", "set", port, "master", "br0", "up"),
                *([("ip", "-n", host_name, "link", "set", WIRE, "up")] if self.nic else ()),
                ("ip", "-n", host_name, "link", "set", INTERFACE, "up"),
                ("ip", "-n", host_name, "link", "set", "lo", "up"),
                *(self._ipv6(host) if self.ipv6 else ()),
            ]
        return commands

    def _card(self, host_name: str) -> list[Command]:
        """Return commands for a host with a card: its interface is a TAP, which the card joins to the cable. The cable's end
        has no address."""
        return [
            ("ip", "-n", host_name, "tuntap", "add", "dev", INTERFACE, "mode", "tap"),
            ("ip", "-n", host_name, "link", "set", INTERFACE, "txqueuelen", str(TAP_FRAMES)),
            ("ip", "-n", host_name, "link", "set", WIRE, "arp", "off"),
            _set(host_name, "ipv4/tcp_rmem", f"4096 131072 {receive_window(self)}"),
            *([_nft(host_name, self.nic_ports)] if self.nic_ports else ()),
        ]

    def _large_packets(self, host_name: str, port: str) -> list[Command]:
        ends = [(self.switch, port), *((host_name, interface) for interface in {INTERFACE: 0, self.wire: 0})]
        return [("ip", "-n", namespace, "link", "set", interface, "mtu", str(self.mtu)) for namespace, interface in ends]

    def _ipv6(self, host: int) -> list[Command]:
        """Return commands that add an IPv6 address to the host's interface, without duplicate address detection."""
        host_name = self.namespace(host)
        return [
            _set(host_name, "ipv6/conf/all/disable_ipv6", "0"),
            *([_set(host_name, f"ipv6/conf/{WIRE}/disable_ipv6", "1")] if self.nic else ()),
            _set(host_name, f"ipv6/conf/{INTERFACE}/accept_ra", "0"),
            ("ip", "-n", host_name, "addr", "add", f"{self.address6(host)}/64", "dev", INTERFACE, "nodad"),
        ]

    def shape(self, namespace: str, interface: str, delay: bool = False) -> list[Command]:
        """Return commands for the token bucket of ``interface``; with ``delay``, after the lab's latency, if any."""
        assert self.link is not None
        add = ("tc", "-n", namespace, "qdisc", "add", "dev", interface)
        bucket = ("tbf", "rate", f"{round(self.link * 8)}bit", "burst", str(burst(self.link)), "limit", str(queue(self.link)))
        if not delay or self.latency is None:
            return [(*add, "root", *bucket)]
        late = ("netem", "limit", str(NETEM_PACKETS), "delay", f"{self.latency * 1e6:.0f}us")
        return [(*add, "root", "handle", "1:", *late), (*add, "parent", "1:1", "handle", "10:", *bucket)]

    def difference(self, other: Topology) -> str:
        """Describe the differences of ``other``; empty if there are none."""
        parts = []
        if self.hosts != other.hosts:
            parts.append(f"{self.hosts} hosts, not {other.hosts}")
        if self.link != other.link:
            parts.append(f"{link_text(self.link)}, not {link_text(other.link)}")
        if self.latency != other.latency:
            parts.append(f"{_latency_text(self.latency)}, not {_latency_text(other.latency)}")
        if self.slots != other.slots:
            parts.append(f"{_slots_text(self.slots)}, not {_slots_text(other.slots)}")
        if self.adds != other.adds:
            parts.append(f"{_adds_text(self.adds)}, not {_adds_text(other.adds)}")
        if self.nic != other.nic:
            parts.append(f"{_nic_text(self.nic)}, not {_nic_text(other.nic)}")
        if self.nic_ports != other.nic_ports:
            parts.append(f"{_ports_text(self.nic_ports)}, not {_ports_text(other.nic_ports)}")
        if self.mtu != other.mtu:
            parts.append(f"an MTU of {self.mtu} B, not {other.mtu} B")
        if self.ipv6 != other.ipv6:
            parts.append("IPv6, not IPv4 alone" if self.ipv6 else "IPv4 alone, not IPv6")
        return " and ".join(parts)


def topology(
    hosts: int,
    link: str | float | None,
    name: str = "lab",
    latency: str | float | None = None,
    slots: int = 0,
    *,
    adds: bool = False,
    nic: str = "",
    nic_ports: str = "",
    mtu: int = MTU,
    ipv6: bool = False,
) -> Topology:
    """Return a checked topology. Raises UserError for illegal arguments.

    Args:
        link: text (``1Gb/s``), or bytes/s each way; None for loopback.
        latency: text (``100us``), or seconds each way.
        slots: CPUs that Slurm gives out on each host; 0 for no Slurm.
        adds: whether the switch adds gradients.
        nic: specification of the network cards, such as ``inceptionn``; empty for no cards.
        nic_ports: TCP ports whose packets are marked for the card, ``A-B``.
        mtu: bytes of an IP packet, from 1280 to 9216.
        ipv6: with an IPv6 address on each host.
    """
    if not 1 <= hosts <= MAX_HOSTS:
        raise UserError(f"{hosts} hosts", f"give a whole number from 1 to {MAX_HOSTS}")
    check_name(name)
    rate = parse_bandwidth(link) if isinstance(link, str) else link
    if rate is not None and not MIN_LINK <= rate < float("inf"):
        raise UserError(f"a link of {format_bandwidth(rate)}", f"give at least {format_bandwidth(MIN_LINK)}")
    delay = parse_seconds(latency) if isinstance(latency, str) else latency
    if delay is not None and not 1e-6 <= delay <= 10:
        raise UserError(f"a latency of {format_seconds(delay)}", "give one from 1us to 10s, each way")
    if not 0 <= slots <= MAX_SLOTS:
        raise UserError(f"{slots} CPUs a host for Slurm", f"give a whole number from 1 to {MAX_SLOTS}")
    if slots and rate is None:
        raise UserError("Slurm needs separate hosts, and loopback has none", "give a link, or leave Slurm out")
    if rate is None and (what := "network cards" if nic else "IPv6" if ipv6 else "MTU" if mtu != MTU else ""):
        raise UserError(f"loopback has no {what}", "give a link, or leave it out")
    if not LEAST_MTU <= mtu <= MOST_MTU:
        raise UserError(f"an MTU of {mtu} B", f"give a whole number from {LEAST_MTU} to {MOST_MTU}")
    if nic_ports and not nic:
        raise UserError("ports are marked for network cards, and there are none", "give --nic too, or leave out --nic-ports")
    card = parse_card(nic).text if nic else ""
    return Topology(name, hosts, rate, delay, slots, adds, card, _checked_ports(nic_ports), mtu, ipv6)


def check_name(name: str) -> None:
    """Raise UserError for text that cannot be part of a namespace's name."""
    if not _NAME.fullmatch(name):
        raise UserError(f"{name!r} is not a lab's name", "use up to 30 of a to z, 0 to 9 and -")


def burst(link: float) -> int:
    """Return the bytes of a burst for a link in bytes/s: enough to make up for a late timer, but less than a bucket of
    gradients."""
    return max(round(link * BURST_S), MIN_BURST)


def queue(link: float) -> int:
    """Return the bytes that may wait in front of a link of ``link`` bytes/s before packets are dropped."""
    return max(round(link * QUEUE_S), MIN_QUEUE)


def card_queue(topology: Topology) -> int:
    """Return the bytes that a card sends ahead of the link: at least two large packets, plus the data in flight during the
    latency."""
    assert topology.link is not None
    return round(max(2 * MIN_BURST, min(topology.link * QUEUE_S, MIN_QUEUE)) + 2 * topology.link * (topology.latency or 0.0))


def receive_window(topology: Topology) -> int:
    """Return the largest receive window of a socket on a host with a card, in bytes (tcp_rmem).

    A TAP accepts each packet from its sender at once, so only this window keeps seconds of data out of the card's queue.
    """
    assert topology.link is not None
    return round(
        min(max(MIN_WINDOW, 2 * topology.link * QUEUE_S) + 32 * topology.link * (topology.latency or 0.0), MOST_WINDOW)
    )


def _set(namespace: str, name: str, value: str) -> Command:
    return ("nsenter", f"--net={NETNS}/{namespace}", "sh", "-c", f'echo "{value}" > /proc/sys/net/{name}')


def _nft(namespace: str, ports: str) -> Command:
    """Return rules that mark a host's packets from or to these TCP ports, as setsockopt(IP_TOS) would."""
    chain = "inet paceline for_card"
    rules = [
        f"add rule {chain} meta nfproto {family} tcp {side} {ports} {header} dscp set {MARK_DSCP}"
        for family, header in (("ipv4", "ip"), ("ipv6", "ip6"))
        for side in ("sport", "dport")
    ]
    made = ("add table inet paceline", f"add chain {chain} {{ type filter hook output priority mangle ; }}", *rules)
    return ("nsenter", f"--net={NETNS}/{namespace}", "nft", "; ".join(made))


def _checked_ports(text: str) -> str:
    if not text:
        return ""
    first, last = (int(part) if part.isdigit() else 0 for part in (text.partition("-")[0], text.partition("-")[2] or text))
    if not 1 <= first <= last <= 65535:
        raise UserError(f"{text!r} are no ports", "give two numbers from 1 to 65535, the smaller first: 20000-30000")
    return f"{first}-{last}"


def quiet(namespace: str) -> Command:
    """Disable IPv6 before there is an interface, because its router and neighbour messages would be in every counter."""
    return ("nsenter", f"--net={NETNS}/{namespace}", "sh", "-c", _NO_IPV6)


def link_text(link: float | None) -> str:
    """Describe a link in words."""
    return "loopback" if link is None else f"{format_bandwidth(link)} each way"


def _nic_text(nic: str) -> str:
    return f"cards {nic}" if nic else "no cards"


def _ports_text(ports: str) -> str:
    return f"ports {ports} marked" if ports else "no ports marked"


def _slots_text(slots: int) -> str:
    return f"Slurm with {slots} CPUs a host" if slots else "no Slurm"


def _adds_text(adds: bool) -> str:
    return "a switch that adds" if adds else "a plain switch"


def _latency_text(latency: float | None) -> str:
    return "no latency" if latency is None else f"a latency of {format_seconds(latency)}"
