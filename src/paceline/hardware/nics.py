"""Network cards that compress, by name, from ``nics.toml``: an engine between host and line, with sources.

A frame takes a cycle of the engine for each beat of its headers and for each beat of its payload (Li et al. 2018, INCEPTIONN,
MICRO, section VI: the engine lies in the card's stream of 256-bit bursts).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import ceil, inf
from typing import Any

from paceline.errors import MOST_LISTED, UserError, unknown
from paceline.hardware.catalogue import load
from paceline.hardware.device import Fact
from paceline.hardware.device_rows import fact
from paceline.hardware.spelling import fold_hardware
from paceline.units import format_bandwidth, parse_bandwidth

GIVEN = "given by the user"


@dataclass(frozen=True, kw_only=True)
class Nic:
    """Card whose engine compresses outgoing data and restores incoming data, both at the same time.

    Attributes:
        compressions: names of those that the engine supports.
        width: bits of a beat (the data of one bus transfer). ``clock``: Hz. ``beats``: those that the engine handles per cycle.
        compress, decompress: cycles between the first beat of a frame in and its first beat out.
        engine: bytes/s of payload that the engine passes in one direction; None: as its clock allows (``rate``).
        host: bytes/s between host and line in one direction; None: the engine sets it.
        line: bytes/s of the port in one direction; None: the network sets it.
    """

    name: str
    compressions: tuple[str, ...]
    width: Fact
    clock: Fact
    beats: Fact
    compress: Fact
    decompress: Fact
    engine: Fact | None = None
    host: Fact | None = None
    line: Fact | None = None
    aliases: tuple[str, ...] = ()

    def rate(self, payload: int, headers: int) -> float:
        """Return bytes/s of payload in one direction, for frames with ``payload`` bytes after ``headers`` bytes. Headers and
        payload each start a new beat."""
        beat = self.width.value / 8
        cycles = (ceil(headers / beat) + ceil(payload / beat)) / self.beats.value
        engine = self.engine.value if self.engine else payload * self.clock.value / cycles
        return min(engine, self.host.value) if self.host else engine

    @property
    def line_rate(self) -> float:
        """Bytes/s that the card can put on the line; infinite if the network alone is the limit."""
        return self.line.value if self.line else inf

    @property
    def latency_s(self) -> float:
        """Additional seconds of a frame through the compressor of one card and the decompressor of another."""
        return (self.compress.value + self.decompress.value) / self.clock.value

    @property
    def assumed(self) -> bool:
        """True if any number of the engine is an assumption."""
        facts = (*((self.width, self.clock, self.beats) if self.engine is None else ()), self.compress, self.decompress)
        return any(number.source.startswith("assumption") for number in facts)


@cache
def nics() -> tuple[Nic, ...]:
    """Return all cards in the file's order. The first is the default."""
    data = load("nics.toml")
    return tuple(_nic(row, data["sources"]) for row in data["nic"])


def nic(text: str = "") -> Nic:
    """Return the card of that name or alias, in any spelling; the first for an empty text. ``NAME:RATE``, such as
    ``inceptionn:25.6Gb/s``, is that card with this rate of uncompressed bits in each direction.

    Raises:
        UserError: an unknown name, or no rate after the colon.
    """
    if not isinstance(text, str):
        raise UserError(f"card {text!r}", "give a name such as inceptionn")
    name, colon, rate = text.partition(":")
    by_name = {fold_hardware(each): card for card in nics() for each in (card.name, *card.aliases)}
    card = by_name.get(fold_hardware(name)) if name.strip() else nics()[0]
    if card is None:
        raise unknown("network card", name, [each.name for each in nics()], few=MOST_LISTED)
    if not colon:
        return card
    value = parse_bandwidth(rate)
    return replace(card, name=f"{card.name} at {format_bandwidth(value)}", engine=Fact(value, GIVEN, ""))


def _nic(row: dict[str, Any], sources: dict[str, Any]) -> Nic:
    facts = {key: fact(row[key], sources) for key in ("width", "clock", "beats", "compress", "decompress")}
    limits = {key: fact(row[key], sources) for key in ("host", "line") if key in row}
    return Nic(name=row["name"], compressions=tuple(row["compressions"]), aliases=tuple(row["aliases"]), **facts, **limits)
