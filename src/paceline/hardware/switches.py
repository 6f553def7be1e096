"""Switches that add up passing gradients, by name, from ``switches.toml``.

SHARP adds floats (Graham et al. 2016, Scalable Hierarchical Aggregation Protocol, COMHPC); SwitchML and ATP run on programmable
switches, which add integers alone, so hosts scale and round (Sapio et al. 2021, Lao et al. 2021, both NSDI).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any

from paceline.errors import MOST_LISTED, UserError, unknown
from paceline.hardware.catalogue import load
from paceline.hardware.device import Fact
from paceline.hardware.device_rows import fact, source_text
from paceline.hardware.spelling import fold_hardware


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """A switch's ability to add, and its cost on the line.

    Attributes:
        kinds: networks that support it (``Link.kind``).
        sums: types of numbers that it adds: ``fp32``, ``int32``, ``ternary``; ``source`` of that.
        payload, headers: bytes of a packet of the switch's protocol; None: full frames of the network's.
        rate: bytes/s of a port in one direction that it can process; None: the network's.
    """

    name: str
    kinds: tuple[str, ...]
    sums: tuple[str, ...]
    source: str
    payload: Fact | None = None
    headers: Fact | None = None
    rate: Fact | None = None
    aliases: tuple[str, ...] = ()

    def on_line(self, payload: int, headers: int) -> float:
        """Return the bytes on the line per byte that is added, relative to frames of ``payload`` and ``headers`` bytes."""
        if self.payload is None or self.headers is None:
            return 1.0
        return (1 + self.headers.value / self.payload.value) / (1 + headers / payload)

    @property
    def port_rate(self) -> float:
        """Bytes/s per port that it can process; infinite if the network alone is the limit."""
        return self.rate.value if self.rate else inf


@cache
def aggregations() -> tuple[Aggregation, ...]:
    """Return all adding switches in the order of the file."""
    data = load("switches.toml")
    return tuple(_aggregation(row, data["sources"]) for row in data["switch"])


def aggregation(name: str) -> Aggregation:
    """Return the adding switch of that name or alias, in any spelling. Raises UserError with the nearest names."""
    if not isinstance(name, str):
        raise UserError(f"aggregation {name!r}", "give a name such as SHARP")
    by_name = {fold_hardware(each): entry for entry in aggregations() for each in (entry.name, *entry.aliases)}
    if fold_hardware(name) not in by_name:
        raise unknown("switch that adds", name, [entry.name for entry in aggregations()], few=MOST_LISTED)
    return by_name[fold_hardware(name)]


def _aggregation(row: dict[str, Any], sources: dict[str, Any]) -> Aggregation:
    facts = {key: fact(row[key], sources) for key in ("payload", "headers", "rate") if key in row}
    return Aggregation(
        name=row["name"],
        kinds=tuple(row["kinds"]),
        sums=tuple(row["sums"]["value"]),
        source=source_text(sources[row["sums"]["source"]]),
        aliases=tuple(row.get("aliases", ())),
        **facts,
    )
