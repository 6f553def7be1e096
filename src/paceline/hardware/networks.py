"""Networks from text: a link of the catalogue, several of them, or a speed with what carries bytes over it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
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

_SEVERAL = re.compile(r"^\s*([1-9][0-9]*)\s*[x×]\s+(\S.*)$", re.IGNORECASE)
_SPEED = re.compile(
    r"^\s*(?:(?P<before>[a-z][a-z0-9\s-]*?)[\s-]*)?(?P<number>(?<![0-9.])[0-9][0-9,]*(?:\.[0-9]+)?)\s*"
    r"(?P<unit>[KMGT](?:b/s|bps|bit/s)|G(?:b?E)?)(?:[\s-]+(?P<after>[a-z][\w\s-]*?))?\s*$",
    re.IGNORECASE,
)
"""``100G``, ``100GbE``, ``EFA 3,200 Gb/s``, ``400Gb/s RoCE``."""
_SINGLE_FLOW = 10e9 / 8
"""Bytes/s of one TCP flow between machines of a cloud (``ec2-flows`` of ``links.toml``)."""


@dataclass(frozen=True, slots=True)
class Transport:
    """What carries bytes over a network of any speed.

    ``flows``: whether one flow gets a part of the line alone, so that software reaches a share of it (``Link.carried``).
    """

    name: str
    kind: Literal["ethernet", "infiniband"]
    latency: Fact
    flows: bool = False
    aliases: tuple[str, ...] = ()
    note: str = ""


def network(text: str) -> Link:
    """The link between nodes that ``text`` names.

    Args:
        text: a link (``InfiniBand HDR``), several of them at each node (``8x InfiniBand HDR``), a bandwidth per
            node in one direction (``10Gb/s``, ``100G``, ``100GbE``), or a bandwidth with its transport (``3200Gb/s EFA``,
            ``RoCE 100Gb/s``, ``TCP 400Gb/s``). A bandwidth alone means Ethernet: the link of the catalogue with that
            bandwidth, else a new link with the latency of the nearest one.

    Raises:
        UserError: neither a known link nor a bandwidth.
    """
    if not isinstance(text, str):
        raise UserError(f"network {shown(text)}", "give a text such as 100Gb/s or 'InfiniBand HDR'")
    if entry := known_link(text):
        return entry
    if several := _SEVERAL.match(text):
        return _side_by_side(int(several[1]), network(several[2]))
    if speed := _SPEED.match(text):
        bandwidth = parse_bandwidth(f"{speed['number'].replace(',', '')}{_unit(speed['unit'])}")
        words = " ".join(filter(None, (speed["before"], speed["after"])))
        if fold(words) in ("", "ethernet"):
            return _ethernet(bandwidth)
        if carrier := transport(words):
            return _carried_by(carrier, bandwidth)
    elif re.match(r"\s*[0-9.]", text):
        return _ethernet(parse_bandwidth(text))
    raise unknown("network", text, link_names(), "or give a bandwidth per node such as 10Gb/s, or 100Gb/s RoCE")


def transport(name: str) -> Transport | None:
    """The transport of that name or alias: ``RoCE``, ``EFA``, ``TCP``, ``GPUDirect-TCPX``, ``InfiniBand``; None for no such."""
    known = transports()
    aliases = {alias: entry.name for entry in known.values() for alias in entry.aliases}
    return known.get(look_up(name, known, aliases) or "")


@cache
def transports() -> Mapping[str, Transport]:
    """Every transport by its name, in the order of ``links.toml``."""
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
    """The unit of a speed for ``parse_bandwidth``: ``G`` and ``GbE`` are Gb/s."""
    return text if "/" in text or text.endswith("ps") else "Gb/s"


def _side_by_side(count: int, single: Link) -> Link:
    """``count`` equal links side by side: their bandwidths add, the latency is that of one."""
    if count == 1:
        return single
    total = replace(single.bandwidth, value=count * single.bandwidth.value, source=f"{count} x {single.bandwidth.source}")
    return replace(single, name=f"{count}x {single.name}", bandwidth=total, aliases=())


def _carried_by(carrier: Transport, bandwidth: float) -> Link:
    """The catalogue's link of that transport and bandwidth within one part in a thousand, else one made for it."""
    for entry in links():
        named = any(fold(name).startswith(fold(carrier.name)) for name in (entry.name, *entry.aliases))
        if named and entry.kind == carrier.kind and math.isclose(entry.bandwidth.value, bandwidth, rel_tol=1e-3):
            return entry
    share = min(1.0, math.sqrt(_SINGLE_FLOW / bandwidth))
    shared = next((entry.carried for entry in links() if entry.carried is not None), None) if carrier.flows else None
    return Link(
        name=f"{carrier.name} {format_bandwidth(bandwidth)}",
        kind=carrier.kind,
        bandwidth=Fact(bandwidth, "given by the user", carrier.latency.date),
        latency=carrier.latency,
        note=carrier.note,
        carried=replace(shared, value=share) if shared and share < 1 else None,
    )


def _ethernet(bandwidth: float) -> Link:
    """Ethernet of ``bandwidth`` bytes/s: the catalogue's own within one part in a thousand, else one made for it."""
    ethernets = [ethernet for ethernet in links() if ethernet.name.startswith("Ethernet")]
    nearest = min(ethernets, key=lambda ethernet: abs(math.log(ethernet.bandwidth.value / bandwidth)))
    if math.isclose(nearest.bandwidth.value, bandwidth, rel_tol=1e-3):
        return nearest
    return Link(
        name=f"Ethernet {format_bandwidth(bandwidth)}",
        kind="ethernet",
        bandwidth=Fact(bandwidth, "given by the user", nearest.bandwidth.date),
        latency=replace(nearest.latency, source=f"as {nearest.name}: {nearest.latency.source}"),
        carried=_carried(bandwidth),
    )


def _carried(bandwidth: float) -> Fact | None:
    """Share of an Ethernet link that TCP carries, interpolated between the links of the catalogue.

    A faster link never carries fewer bytes. Below the slowest link with a known share, TCP fills the line. Above the fastest
    one, the carried rate grows up to that of the next link, which carries RDMA.
    """
    rates = sorted(
        ((ethernet.bandwidth.value, ethernet.carried) for ethernet in links() if ethernet.name.startswith("Ethernet")),
        key=lambda ethernet: ethernet[0],
    )
    for (low, below), (high, above) in pairwise(rates):
        known = below or above
        if known is not None and low < bandwidth < high:
            ends = (carried.value if carried else 1.0 for carried in (below, above))
            small, large = (math.log(rate * share) for rate, share in zip((low, high), ends, strict=True))
            weight = math.log(bandwidth / low) / math.log(high / low)
            return replace(known, value=math.exp(small + weight * (large - small)) / bandwidth)
    return None
