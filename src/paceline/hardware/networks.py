"""Networks from text: a link of the catalogue, several of them, or a speed with its transport."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Literal

from paceline.errors import UserError, shown, unknown
from paceline.hardware.catalogue import known_link, link_names, links, load
from paceline.hardware.device import Fact, Link
from paceline.hardware.device_rows import fact
from paceline.names import fold, look_up
from paceline.units import format_bandwidth, parse_bandwidth

_PARTS = "(?:(?:nics?|ports?|links?|cards?|rails?|hcas?|adapters?)\\b)"
_COUNTS = re.compile(
    rf"\(?(?<![\w.-])(?P<per_node>[1-9]\d*)\s*{_PARTS}?\s*(?:per|an?|each|/)\s*(?:node|server|host)\b\)?"
    rf"|(?<![\w.-])(?P<before>[1-9]\d*)\s*(?:[x×]\s*(?=\S)|{_PARTS}\s*(?:of|at|with)?\s*)"
    r"|\(?(?<![a-z0-9])[x×]\s*(?P<behind>[1-9]\d*)\b\)?(?!\s*(?:\.?\d|[KMGT]))|\(\s*(?P<alone>[1-9]\d*)\s*[x×]\s*\)",
    re.IGNORECASE,
)
"""Numbers of links: ``8x NDR``, ``4 NICs of 200Gb/s``, ``NDR x8``, ``(8 per node)``, ``(2x)``."""
_LANES_USED = re.compile(r"([a-z][a-z\s-]*?dr)[\s-]?([1-9]00)\b(?!\s*[GM/])(.*)", re.IGNORECASE)
"""``HDR100``, ``NDR200 InfiniBand``: a port with a part of its generation's lanes."""
_NESTED = re.compile(r"\s*([1-9]\d*)\s*[x×]\s*([1-9]\d*\s*[x×].*)", re.IGNORECASE)
"""``2x 4x InfiniBand NDR``: nodes that join, each with its links."""
_LANES = re.compile(r"(?:pcie|gen\s?\d)[\w. ]*?[x×]\s*\d+", re.IGNORECASE)
"""Lanes of a slot, which are no links of a network."""
_SPEED = re.compile(
    r"^\s*(?:(?P<before>[a-z][a-z0-9\s-]*?)[\s-]*)?(?P<number>(?<![0-9.])[0-9][0-9,]*(?:\.[0-9]+)?)\s*"
    r"(?P<unit>[KMGT](?:b/s|bps|bit/s)|G(?:b?E)?|gigabits?(?:/s)?)(?:[\s-]+(?P<after>[a-z][\w\s-]*?))?\s*$",
    re.IGNORECASE,
)
"""``100G``, ``100GbE``, ``10 gigabit``, ``EFA 3,200 Gb/s``, ``400Gb/s RoCE``."""
_SAME = 1e-6
"""Two bandwidths this near, in parts of one, are the same."""
_PORTS = re.compile(
    r"\s*(?:([0-9]+)\s*[x×]\s*)?([^,+:;]*?)(?<![\d.])([0-9]+(?:\.[0-9]+)?)\s*(Gb(?!E)|G\b|Gbps|GbE)(\s*/\s*s)?"
    r"(?=([^,+;]*))",
    re.IGNORECASE,
)
_NEXT_PORT = re.compile(r"\d+\s*[x×]\s*[^,]*?\d\s*G", re.IGNORECASE)
_PORT_SPEEDS = (10.0, 25.0, 40.0, 50.0, 100.0, 200.0, 400.0, 800.0)
"""Gb/s of a port: who writes "100 GB/s Ethernet" means such a port. Any other number of GB/s is of bytes."""
_OF_SPEED = {100.0: "InfiniBand EDR", 200.0: "InfiniBand HDR", 400.0: "InfiniBand NDR", 800.0: "InfiniBand XDR"}
_RDMA_FROM = 200.0
"""Gb/s of a port from which submissions use RDMA, though they do not say so."""
_TERABITS = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s*(?:Tb/s|Tbps|Tbit/s)", re.IGNORECASE)
_FABRICS = (("slingshot[ -]?10", "Slingshot 10"), ("slingshot", "Slingshot 11"), ("omni-?path", "Omni-Path"))
"""Fabrics in a text, and their names in the catalogue."""
_INSIDE = re.compile(r"nvlink|nvswitch|pcie|gpu-pcie", re.IGNORECASE)
_INFINIBAND = re.compile(r"infiniband|\bib\b|\b[ehx]dr|\bndr", re.IGNORECASE)
_SEVERAL_PORTS = re.compile(r"\b(?:dual|quad|twin)\b", re.IGNORECASE)
_FABRIC_WORDS = re.compile(
    r"infiniband|\bib\b|\b[ehx]dr|\bndr|\befa|connectx|bluefield|mellanox|slingshot|omni-?path|roce v?\d|\ba node|per gpu|, ",
    re.IGNORECASE,
)
"""Words by which a text describes a network between nodes."""


@dataclass(frozen=True, slots=True)
class Transport:
    """Transport protocol over a network of any speed. ``flows``: one flow gets only a part of the line rate, so that software
    reaches a share of it (``Link.carried``)."""

    name: str
    kind: Literal["ethernet", "infiniband"]
    latency: Fact
    flows: bool = False
    aliases: tuple[str, ...] = ()
    note: str = ""


def network(text: str, like: Link | None = None) -> Link:
    """Return the link between nodes that ``text`` names.

    Args:
        text: a link (``InfiniBand HDR``), several of them at each node (``8x InfiniBand HDR``, ``400Gb/s RoCE x 8``), a
            bandwidth per node in one direction (``10Gb/s``, ``100G``, ``100GbE``), or a bandwidth with its transport
            (``3200Gb/s EFA``, ``RoCE 100Gb/s``, ``TCP 400Gb/s``). A bandwidth alone is an Ethernet without a stated transport:
            it has the cost of TCP, and ``by_transport`` gives the alternatives.
        like: the network that this one replaces: a bandwidth alone takes its transport.

    Raises:
        UserError: neither a known link nor a bandwidth, or two numbers of links.
    """
    try:
        link = _named(text)
    except UserError:
        if isinstance(text, str) and (several := _SEVERAL_PORTS.search(text)):
            raise UserError(f"network {text!r}: {several[0]} may be one or several links", "give a number: 2x 100GbE") from None
        said = described(text) if isinstance(text, str) and _FABRIC_WORDS.search(text) else None
        if said is None:
            raise
        link = said
    if like is None or not transport_unsaid(link) or (like.kind != "ethernet" and re.search("eth|GbE|GE", text, re.IGNORECASE)):
        return link
    carrier = transport(like.transport)
    if carrier is None:
        return link
    return _carried_by(carrier, link.bandwidth.value, like.reduces)


@cache
def described(text: str, devices: int = 1) -> Link | None:
    """Return the network between nodes named in a description: ``Compute: 8x ConnectX-6 IB HDR 200Gb/Sec``, ``4 x 100 Gb/s
    RoCE a node``, ``InfiniBand 100 Gb/s (1 x EDR)``, ``HPE Slingshot-11``.

    Ports named for storage or management do not count; several ports of one speed add up.

    Args:
        devices: devices of a node. Each has a port of a fabric without a stated number of ports, and of ports ``per GPU``.
    """
    text = _TERABITS.sub(lambda found: f"{1000 * float(found[1]):g} Gb/s", text.replace("，", ", "))
    for word, name in _FABRICS:
        for part in re.split("[,;]", text):
            if re.search(word, part, re.IGNORECASE):
                return _of_fabric(part, word, name, devices)
    found = [link for part in re.split(r",(?=\s*[A-Z]\w+:)|\+(?=\s)|\s(?=Compute:)", text) for link in _ports(part, devices)]
    return max(found, key=lambda link: link.bandwidth.value, default=None)


def _of_fabric(part: str, word: str, name: str, devices: int) -> Link | None:
    """Return the links of a fabric in a part of a description; None if the stated speed is not a multiple of one link's."""
    single = _named(name)
    count, _ = _split_count(part)
    if not count and (found := re.search(rf"(?<![\w.-])(\d+)\s+(?:(?!Gb|G\b)[a-z]+\s+){{0,2}}{word}", part, re.IGNORECASE)):
        count = int(found[1])
    if speed := re.search(r"(?<![\d.])(\d+(?:\.\d+)?)\s*G(?:b|bps|b/s)?\b", part):
        links_said = parse_bandwidth(f"{speed[1]}Gb/s") / single.bandwidth.value
        if round(links_said) < 1 or not math.isclose(links_said, round(links_said)):
            return None
        if round(links_said) not in (1, count):
            count = round(links_said) * max(count, 1)
    return _side_by_side(count or devices, single)


def _split_count(text: str) -> tuple[int, str]:
    """Split a text into the number of links that it states, 0 if it states none, and the rest.

    Raises:
        UserError: two different numbers.
    """
    counts = {int(next(filter(None, found.groups()))) for found in _COUNTS.finditer(_LANES.sub("", text))}
    if len(counts) > 1:
        both = " and ".join(map(str, sorted(counts)))
        raise UserError(f"network {text!r} has two numbers of links, {both}", "give one, such as 4x InfiniBand HDR")
    return (counts.pop(), _COUNTS.sub("", text).strip()) if counts else (0, text)


def _ports(part: str, devices: int) -> Iterator[Link]:
    """Yield the networks of the ports in a part of a description."""
    if re.match(r"\s*(storage|management)", part, re.IGNORECASE) and "compute" not in part.casefold():
        return
    for count, words, speed, unit, per_second, behind in _PORTS.findall(part):
        if _INSIDE.search(words) or (unit == "GB" and not per_second):  # a link inside the node, or a size of memory
            continue
        kind = _OF_SPEED.get(float(speed))
        is_bytes = unit.startswith("GB") and float(speed) not in _PORT_SPEEDS
        name = kind if kind and _INFINIBAND.search(words + part) else f"{float(speed):g}{'GB/s' if is_bytes else 'Gb/s'}"
        if name[0].isdigit():
            efa = re.search(r"\befa\b", part, re.IGNORECASE)
            rdma = float(speed) >= _RDMA_FROM or re.search(r"roce|rdma", part, re.IGNORECASE)
            name += " EFA" if efa else " RoCE" if rdma else ""
        ports = _split_count(f"{f'{count}x ' if count else ''}{words} {re.split(_NEXT_PORT, behind)[0]}")[0] or 1
        if (total := re.search(r"(\d+)\s*[x×]\s*(\d+)", behind)) and int(total[1]) * int(total[2]) == float(speed):
            ports = 1  # the speed is that of all ports: 3200 Gb/s (8 x 400)
        if re.match(r"\s*(per|a|each)\s*(gpu|device|chip)", behind, re.IGNORECASE):
            ports *= devices
        if link := _linked(f"{ports}x {name}" if ports > 1 else name):
            yield link


def _linked(text: str) -> Link | None:
    try:
        return _named(text)
    except UserError:
        return None


def transport_unsaid(link: Link) -> bool:
    """Return whether the text states a speed without a transport. TCP is then assumed."""
    return link.kind == "ethernet" and not link.transport


def by_transport(link: Link) -> Mapping[str, Link]:
    """Return the possible networks of unstated transport, by ``RDMA`` and ``TCP``; empty if the transport is stated."""
    if not transport_unsaid(link):
        return {}
    remote = transports()["RoCE"]
    rdma = replace(link, latency=remote.latency, note=remote.note, carried=None)
    names = {"RDMA": (rdma, remote.name), "TCP": (link, "TCP")}
    return {
        key: replace(of, name=of.name.replace("Ethernet", name), transport=name, aliases=())
        for key, (of, name) in names.items()
    }


def _named(text: str) -> Link:
    """Return the network of a text without other arguments, as ``network`` does."""
    if not isinstance(text, str):
        raise UserError(f"network {shown(text)}", "give a text such as 100Gb/s or 'InfiniBand HDR'")
    if entry := known_link(text):
        return entry
    if nested := _NESTED.match(text):
        return _side_by_side(int(nested[1]), _named(nested[2]))
    count, single = _split_count(text)
    if count and single:
        return _side_by_side(count, _named(single))
    if (port := _part_of_lanes(text)) is not None:
        return port
    if speed := _SPEED.match(text):
        bandwidth = parse_bandwidth(f"{speed['number'].replace(',', '')}{_unit(speed['unit'])}")
        words = " ".join(filter(None, (speed["before"], speed["after"])))
        if fold(words) in ("", "ethernet"):
            return _ethernet(bandwidth)
        if carrier := transport(words):
            return _carried_by(carrier, bandwidth)
    elif re.match(r"\s*[0-9.]", text):
        return _ethernet(parse_bandwidth(text))
    elif (carrier := transport(text)) is not None:
        raise UserError(f"network {text!r} has no speed", f"give it too, such as 100Gb/s {carrier.name}")
    raise unknown("network", text, link_names(), "or give a bandwidth per node such as 10Gb/s, or 100Gb/s RoCE")


def _part_of_lanes(text: str) -> Link | None:
    """Return the InfiniBand of the speed that stands behind its generation; None for another text or a faster speed."""
    if not (said := _LANES_USED.fullmatch(text.strip())):
        return None
    whole, bandwidth = known_link(f"{said[1]} {said[3]}".strip()), parse_bandwidth(f"{said[2]}Gb/s")
    if whole is None or whole.transport != "InfiniBand" or bandwidth > whole.bandwidth.value * (1 + _SAME):
        return None
    return _carried_by(transports()["InfiniBand"], bandwidth, whole.reduces)


def transport(name: str) -> Transport | None:
    """Return the transport of that name or alias: ``RoCE``, ``EFA``, ``TCP``, ``GPUDirect-TCPX``, ``InfiniBand``; None if
    unknown."""
    known = transports()
    aliases = {alias: entry.name for entry in known.values() for alias in entry.aliases}
    return known.get(look_up(name, known, aliases) or "")


@cache
def transports() -> Mapping[str, Transport]:
    """Return all transports by name, in the order of ``links.toml``."""
    data = load("links.toml")
    return {
        entry["name"]: Transport(
            name=entry["name"],
            kind=entry["kind"],
            latency=fact(entry["latency"], data["sources"]),
            flows=entry.get("flows", False),
            aliases=tuple(entry.get("aliases", ())),
            note=entry.get("note", ""),
        )
        for entry in data["transport"]
    }


def _unit(text: str) -> str:
    """Return the unit of a speed for ``parse_bandwidth``: ``G``, ``GbE`` and ``gigabit`` are Gb/s."""
    rate = ("/" in text or text.endswith("ps")) and "giga" not in text.casefold()
    return text if rate else "Gb/s"


def _side_by_side(count: int, single: Link) -> Link:
    """Return ``count`` equal links in parallel: their bandwidths add, and the latency is that of one."""
    if count == 1:
        return single
    total = replace(single.bandwidth, value=count * single.bandwidth.value, source=f"{count} x {single.bandwidth.source}")
    return replace(single, name=f"{count}x {single.name}", bandwidth=total, aliases=())


def _carried_by(carrier: Transport, bandwidth: float, reduces: bool = False) -> Link:
    """Return the catalogue's link of that transport and bandwidth, else one made for it."""
    for entry in links():
        same = (entry.transport, entry.reduces) == (carrier.name, reduces)
        if same and math.isclose(entry.bandwidth.value, bandwidth, rel_tol=_SAME):
            return entry
    tcp = _ethernet(bandwidth) if carrier.flows else None
    return Link(
        name=f"{carrier.name} {format_bandwidth(bandwidth)}{' SHARP' if reduces else ''}",
        kind=carrier.kind,
        bandwidth=Fact(bandwidth, "given by the user", carrier.latency.date),
        latency=tcp.latency if tcp else carrier.latency,
        note=carrier.note,
        reduces=reduces,
        carried=tcp.carried if tcp else None,
        transport=carrier.name,
    )


def _ethernet(bandwidth: float) -> Link:
    """Return the Ethernet of ``bandwidth`` bytes/s: the catalogue's, else interpolated. It has the share and latency of TCP.

    Both numbers are continuous in the bandwidth, so small changes of bandwidth have small effects.
    """
    nearest = min(_ethernets(), key=lambda ethernet: abs(math.log(ethernet.bandwidth.value / bandwidth)))
    if math.isclose(nearest.bandwidth.value, bandwidth, rel_tol=_SAME):
        return nearest
    latency, source = _interpolated(bandwidth, lambda ethernet: ethernet.latency.value), f"as {nearest.name}"
    if math.isclose(latency, nearest.latency.value):
        latency = nearest.latency.value
    else:
        source = f"between {' and '.join(entry.name for entry in _neighbours(bandwidth))}"
    return Link(
        name=f"Ethernet {format_bandwidth(bandwidth)}",
        kind="ethernet",
        bandwidth=Fact(bandwidth, "given by the user", nearest.bandwidth.date),
        latency=replace(nearest.latency, value=latency, source=f"{source}: {nearest.latency.source}"),
        carried=_carried(bandwidth),
    )


def _carried(bandwidth: float) -> Fact | None:
    """Return the share of an Ethernet link that TCP reaches; None if TCP fills the line, as on the slowest links of the
    catalogue."""
    fastest = _ethernets()[-1]
    reached = _interpolated(bandwidth, _tcp_rate)
    if bandwidth > fastest.bandwidth.value:
        reached = _tcp_rate(fastest) * math.sqrt(bandwidth / fastest.bandwidth.value)
    elif bandwidth < _ethernets()[0].bandwidth.value:
        reached = bandwidth
    known = next(entry.carried for entry in _ethernets() if entry.carried is not None)
    return replace(known, value=reached / bandwidth) if reached < bandwidth * (1 - _SAME) else None


def _tcp_rate(ethernet: Link) -> float:
    """Return the bytes/s that TCP reaches on a link of the catalogue."""
    return ethernet.bandwidth.value * (ethernet.carried.value if ethernet.carried else 1.0)


def _interpolated(bandwidth: float, of: Callable[[Link], float]) -> float:
    """Interpolate a number between Ethernets of the catalogue, on logarithmic axes; constant outside their range."""
    low, high = _neighbours(bandwidth)
    if low is high:
        return of(low)
    weight = math.log(bandwidth / low.bandwidth.value) / math.log(high.bandwidth.value / low.bandwidth.value)
    return math.exp((1 - weight) * math.log(of(low)) + weight * math.log(of(high)))


def _neighbours(bandwidth: float) -> tuple[Link, Link]:
    """Return the catalogue's Ethernets with the next lower and next higher bandwidth; the last one twice outside their
    range."""
    rates = _ethernets()
    return next(
        (pair for pair in pairwise(rates) if pair[0].bandwidth.value <= bandwidth <= pair[1].bandwidth.value),
        (rates[0],) * 2 if bandwidth < rates[0].bandwidth.value else (rates[-1],) * 2,
    )


@cache
def _ethernets() -> tuple[Link, ...]:
    """Return the catalogue's Ethernets without a stated transport, slowest first."""
    return tuple(sorted(filter(transport_unsaid, links()), key=lambda ethernet: ethernet.bandwidth.value))
