"""The grammar of a network between nodes: a number of ports, a port or a speed, and a transport, in any usual order.

PORTS      8x, x8, (8x), 8 NICs of, a single, dual, per GPU
PORT       InfiniBand NDR, HDR200, ConnectX-7, Slingshot 11
SPEED      400Gb/s, 400G, 100GbE, 10 gigabit
TRANSPORT  RoCE, TCP, EFA, InfiniBand, GPUDirect-TCPX, Slingshot
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from paceline.hardware.catalogue import known_link
from paceline.hardware.phrases.tokens import Token, spaced, tokens, vocabulary
from paceline.names import fold
from paceline.units import parse_bandwidth

_GENERATION = re.compile(r"([efhnx]dr)(\d{2,3})?", re.IGNORECASE)
_LANES = re.compile(r"(?:pcie|gen\s?\d)[\w. ]*?[x×]\s*\d+", re.IGNORECASE)
"""Lanes of a slot, which are no ports."""
_NUMBER = re.compile(r"([\d.,]+)\s*([KMGT])", re.IGNORECASE)
_NEAR = 0.06
"""Two speeds this near, in parts of one, are the same: FDR is 54.5 or 56 Gb/s."""


@dataclass(frozen=True, slots=True)
class LinkPhrase:
    """Network as a phrase states it.

    Attributes:
        text: one port, or the speed with its transport, as ``networks.network`` takes it.
        count: number of ports; 0 if it is not stated. ``per_device``: whether each device has that many.
        port: whether the text is the name of a port. ``ethernet``: whether it says Ethernet, and no transport.
        inside: whether it names a link inside a node.
    """

    text: str
    count: int = 0
    per_device: bool = False
    port: bool = False
    ethernet: bool = False
    inside: bool = False


@cache
def link_phrase(text: str) -> LinkPhrase:
    """Parse a phrase such as ``8x InfiniBand NDR``, ``TCP over 100G``, ``2 x 100 Gbps Ethernet`` or ``ConnectX-7``. A phrase
    with two numbers of ports, or with unknown words, stays as it is."""
    if known_link(text):
        return _named(text)
    said = tokens(spaced(_LANES.sub("", text)), lambda word: known_link(word) is not None)
    counts, rest, per_device = _counts(said)
    if len(counts) > 1:
        return LinkPhrase(text)
    found = _one_port(rest)
    if found is None:
        return LinkPhrase(text)
    return replace(found, count=max(1, found.count) * max(counts) if counts else found.count, per_device=per_device)


def _counts(said: Sequence[Token]) -> tuple[set[int], list[Token], bool]:
    """Return the numbers of ports, the other tokens, and whether the ports are those of each device."""
    words, counts, rest, per_device, place = vocabulary(), set(), [], False, 0
    while place < len(said):
        token = said[place]
        before, after = (said[index] if 0 <= index < len(said) else None for index in (place - 1, place + 1))
        in_words = token.kind == "count" and token.end - token.start > len(token.text)
        of_ports = after is not None and words.of(after, "ports_of")
        multiplied = any(sign is not None and sign.kind == "times" for sign in (before, after))
        if token.kind == "count" and (multiplied or of_ports or in_words):
            counts.add(token.number)
        elif words.of(token, "per") or token.text == "/":
            per_device |= after is not None and words.of(after, "devices")
            place += after is not None and (words.of(after, "devices") or words.of(after, "nodes"))
        elif token.kind in ("count", "word", "speed", "size") and not words.of(token, "link_fillers"):
            rest.append(token)
        place += 1
    return counts, rest, per_device


def _one_port(rest: Sequence[Token]) -> LinkPhrase | None:
    """Return one port, or a speed with its transport; None where words are unknown."""
    joined = " ".join(token.text for token in rest)
    if known_link(joined):
        return _named(joined)
    words = vocabulary()
    speeds = [token for token in rest if token.kind in ("speed", "size")]
    names = [token for token in rest if token.kind not in ("speed", "size")]
    if len(speeds) > 1 or not rest:
        return None
    port, carriers, ethernet = "", [], bool(speeds) and re.search("e$|gigabit", speeds[0].text, re.IGNORECASE) is not None
    for place, token in enumerate(names):
        numbered = fold(f"{token.text}{names[place + 1].text if place + 1 < len(names) else ''}")
        if _GENERATION.fullmatch(token.text):
            port = token.text
        elif (card := words.ports.get(numbered) or words.ports.get(token.folded)) is not None:
            port = port or card
        elif token.folded in words.carriers:
            carriers.append(words.carriers[token.folded])
        elif words.of(token, "ethernet"):
            ethernet = True
        elif words.of(token, "inside") or re.fullmatch(r"nvl\d*", token.folded):
            return LinkPhrase(joined, inside=True)
        elif (token.kind != "count" or place == 0) and not re.fullmatch(r"v\d", token.folded):
            return None
    rdma = [name for name in carriers if name != "InfiniBand"]
    if port and not rdma and not ethernet:
        return _port_of(port, speeds)
    if not speeds and ethernet and not carriers and any(token.folded in ("gige", "gigabit") for token in names):
        return LinkPhrase("1GbE", ethernet=True)
    carrier = next(iter(rdma or carriers), "")
    whole = " ".join(filter(None, (_speed(speeds[0]) if speeds else "", carrier)))
    return LinkPhrase(whole or joined, ethernet=ethernet and not carrier) if whole else None


def _port_of(port: str, speeds: Sequence[Token]) -> LinkPhrase | None:
    """Return a port by its generation or its card. A speed that several of them have together counts them."""
    from paceline.hardware.networks import network

    single = _named(port) if known_link(port) else LinkPhrase(port, port=True)
    if not speeds:
        return single
    ports = parse_bandwidth(_speed(speeds[0])) / network(port).bandwidth.value
    if abs(ports - round(ports)) > _NEAR * max(ports, 1) or round(ports) < 1:
        return LinkPhrase(f"{_speed(speeds[0])} InfiniBand")
    return replace(single, count=round(ports)) if round(ports) > 1 else single


def _named(text: str) -> LinkPhrase:
    """Return a link of the catalogue by name."""
    link = known_link(text)
    assert link is not None
    inside = link.kind not in ("ethernet", "infiniband", "loopback")
    return LinkPhrase(text, port=bool(link.transport), ethernet=link.kind == "ethernet" and not link.transport, inside=inside)


def _speed(token: Token) -> str:
    found = _NUMBER.match(token.text)
    if found is None or re.search("B/s", token.text):
        return token.text
    return f"{found[1].replace(',', '')}{found[2].upper()}b/s"
