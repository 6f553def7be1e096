"""What a lab is made of: its names, its addresses, and the commands that make it, as plain data.

Everything lives in namespaces of the lab's own. One of them, the switch, holds the bridge and one end of every cable, so the
user's own network never has an interface more or less, and deleting the namespaces deletes all there is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.errors import UserError
from paceline.units import format_bandwidth, format_seconds, parse_bandwidth, parse_seconds

PREFIX = "paceline-"
INTERFACE = "pl0"
"""The interface of every host: a name that no device of the machine has, because /sys still shows the machine's own."""
NETNS = "/var/run/netns"
"""Where iproute2 keeps named namespaces."""
MAX_HOSTS = 250
MAX_SLOTS = 1024
MIN_LINK = 125e3
BURST_S = 1e-3
"""Depth of a bucket in seconds of the link: rate / HZ at HZ = 1000. docs/lab.md has the measurements."""
MIN_BURST = 70_000
"""One packet of the largest size that TCP hands down (64 KiB and the headers of its segments), so that it stays whole."""
QUEUE_S = 20e-3
"""What a port holds before it drops, in seconds of the link."""
MIN_QUEUE = 1_000_000
NETEM_PACKETS = 100_000
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?")
_NO_IPV6 = 'for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do [ -e "$f" ] && echo 1 > "$f"; done 2>/dev/null; true'
Command = tuple[str, ...]


@dataclass(frozen=True)
class Topology:
    """The hosts of one lab and the link of each host.

    ``link`` is in bytes/s each way, or None for loopback, which is unshaped. ``latency`` is in seconds each way, or None.
    ``slots`` is the number of CPUs that Slurm gives out on each host; 0 for a lab without Slurm. ``adds``: whether the switch
    adds the gradients of a job (exchange ``switch``).
    """

    name: str
    hosts: int
    link: float | None
    latency: float | None = None
    slots: int = 0
    adds: bool = False

    @property
    def switch(self) -> str:
        """The namespace that holds the bridge."""
        return f"{PREFIX}{self.name}-switch"

    def namespace(self, host: int) -> str:
        """The namespace of one host."""
        return f"{PREFIX}{self.name}-h{host}"

    @property
    def namespaces(self) -> tuple[str, ...]:
        """All that is created outside a namespace: the switch first, then a host each. None for loopback."""
        return () if self.link is None else (self.switch, *(self.namespace(h) for h in range(self.hosts)))

    def address(self, host: int) -> str:
        """A host's IPv4 address. Labs may share addresses: no packet leaves the namespaces."""
        return "127.0.0.1" if self.link is None else f"10.77.0.{host + 1}"

    @property
    def head(self) -> str:
        """The address of the switch itself, where Slurm's controller runs and gradients are added."""
        return "127.0.0.1" if self.link is None else f"10.77.0.{MAX_HOSTS + 1}"

    @property
    def addresses(self) -> tuple[str, ...]:
        """Every host's address, in order."""
        return tuple(self.address(h) for h in range(self.hosts))

    def commands(self) -> list[Command]:
        """What turns empty namespaces into the lab, in order."""
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
                ("ip", "-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", host_name),
                ("ip", "-n", host_name, "addr", "add", f"{self.address(host)}/24", "dev", INTERFACE),
                *self.shape(host_name, INTERFACE, delay=True),
                *self.shape(self.switch, port),
                ("ip", "-n", self.switch, "link", "set", port, "master", "br0", "up"),
                ("ip", "-n", host_name, "link", "set", INTERFACE, "up"),
                ("ip", "-n", host_name, "link", "set", "lo", "up"),
            ]
        return commands

    def shape(self, namespace: str, interface: str, delay: bool = False) -> list[Command]:
        """The token bucket of what leaves ``interface``; with ``delay``, behind the latency where the lab has one."""
        assert self.link is not None
        add = ("tc", "-n", namespace, "qdisc", "add", "dev", interface)
        bucket = ("tbf", "rate", f"{round(self.link * 8)}bit", "burst", str(burst(self.link)), "limit", str(queue(self.link)))
        if not delay or self.latency is None:
            return [(*add, "root", *bucket)]
        late = ("netem", "limit", str(NETEM_PACKETS), "delay", f"{self.latency * 1e6:.0f}us")
        return [(*add, "root", "handle", "1:", *late), (*add, "parent", "1:1", "handle", "10:", *bucket)]

    def difference(self, other: Topology) -> str:
        """What ``other`` has otherwise, in words; empty where they are equal."""
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
        return " and ".join(parts)


def topology(
    hosts: int,
    link: str | float | None,
    name: str = "lab",
    latency: str | float | None = None,
    slots: int = 0,
    adds: bool = False,
) -> Topology:
    """A checked topology. Raises UserError for what cannot be.

    Args:
        link: text (``1Gb/s``), or bytes/s each way; None for loopback.
        latency: text (``100us``), or seconds each way.
        slots: CPUs that Slurm gives out on each host; 0 for no Slurm.
        adds: whether the switch adds gradients.
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
        raise UserError("Slurm needs hosts of their own, which loopback has not", "give a link, or leave Slurm out")
    return Topology(name, hosts, rate, delay, slots, adds)


def check_name(name: str) -> None:
    """Raises UserError for what cannot be part of a namespace's name."""
    if not _NAME.fullmatch(name):
        raise UserError(f"{name!r} is not a lab's name", "use up to 30 of a to z, 0 to 9 and -")


def burst(link: float) -> int:
    """Bytes that may leave at once, for a link in bytes/s: enough to make up for a late timer, too few to carry a bucket."""
    return max(round(link * BURST_S), MIN_BURST)


def queue(link: float) -> int:
    """Bytes that may wait in front of a link of that many bytes/s before they are dropped."""
    return max(round(link * QUEUE_S), MIN_QUEUE)


def quiet(namespace: str) -> Command:
    """No IPv6 there, before there is an interface: its router and neighbour messages would be in every counter."""
    return ("nsenter", f"--net={NETNS}/{namespace}", "sh", "-c", _NO_IPV6)


def link_text(link: float | None) -> str:
    """A link in words."""
    return "loopback" if link is None else f"{format_bandwidth(link)} each way"


def _slots_text(slots: int) -> str:
    return f"Slurm with {slots} CPUs a host" if slots else "no Slurm"


def _adds_text(adds: bool) -> str:
    return "a switch that adds" if adds else "a plain switch"


def _latency_text(latency: float | None) -> str:
    return "no latency" if latency is None else f"a latency of {format_seconds(latency)}"
