"""Devices and links as numbers, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from paceline.errors import unknown
from paceline.hardware.precision import PRECISIONS, RECIPES

BRIDGED = " NVLink"
"""End of the names of boards that bridges join in pairs."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One number with its source. ``value`` is in SI units (bytes, bytes/s per direction, FLOP/s, seconds, watts)."""

    value: float
    source: str
    date: str


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator, or one CPU, as one data-parallel rank uses it.

    Attributes:
        peak_flops: dense peak per precision of the datasheet, FLOP/s (a multiply-add is two). ``precisions`` may be more.
        matmul_flops: best measured dense matmul per precision, FLOP/s, if measured.
        memory: bytes.
        memory_bandwidth: bytes/s.
        link: name of the link to the other devices of its node (see ``paceline hardware list``).
        bridge: name of the link of a pair with an NVLink bridge; empty without one.
        units: multiprocessors, compute units or cores, where they are known.
        lanes: multiply-adds of fp32 that a unit does in a cycle; ``issued``: instructions of a thread that it issues in one. If
            they are equal, other instructions of a kernel take cycles from its multiply-adds.
        array: rows and columns of its systolic arrays, if it has such; smaller products are padded.
        vector_rate: elements/s that its other units read or write, where they may be slower than the memory.
        power: the board's limit in watts, where it is known.
        host_link: name of the link to the host's memory, where it is known.
        host: name of the usual host (``hosts/hosts.toml``), where it is known.
        host_bandwidth: bytes/s of its memory for each device, if the device's own file states them instead.
        architecture: the vendor's name for the design, such as ``Turing``; devices of one share how they throttle.
    """

    name: str
    kind: Literal["gpu", "tpu", "accelerator", "cpu"]
    peak_flops: Mapping[str, Fact]
    memory: Fact
    memory_bandwidth: Fact
    link: str
    matmul_flops: Mapping[str, Fact] = field(default_factory=dict)
    units: Fact | None = None
    lanes: Fact | None = None
    issued: Fact | None = None
    array: Fact | None = None
    vector_rate: Fact | None = None
    power: Fact | None = None
    host_link: str = ""
    host: str = ""
    host_bandwidth: Fact | None = None
    architecture: str = ""
    bridge: str = ""
    aliases: tuple[str, ...] = ()
    note: str = ""

    def __hash__(self) -> int:
        """Return the hash of name and memory. The tables of rates cannot be hashed."""
        return hash((self.name, self.memory))

    @property
    def board(self) -> str:
        """Name of the board itself: a pair that a bridge joins is named after it."""
        return self.name.removesuffix(BRIDGED)

    @property
    def chip(self) -> str:
        """Architecture, else the name. Boards of one chip are fitted, and held out, together."""
        return self.architecture or self.name

    @property
    def cycles(self) -> float | None:
        """Total cycles of all units in a second, at the clock of the fp32 peak; None if unknown."""
        full = self.peak_flops.get("fp32")
        return None if full is None or self.lanes is None else full.value / (2 * self.lanes.value)

    @property
    def precisions(self) -> tuple[str, ...]:
        """Precisions that the device supports: those of its datasheet, and the recipes on top of them
        (``hardware.precision``)."""
        recipes = (
            name
            for name, recipe in RECIPES.items()
            if recipe.peak in self.peak_flops
            and name not in self.peak_flops
            and (not recipe.architectures or self.architecture in recipe.architectures)
        )
        return (*self.peak_flops, *recipes)

    def peak(self, precision: str) -> Fact:
        """Return the dense peak at ``precision``. Raises UserError that lists the device's precisions."""
        if precision not in self.precisions:
            raise unknown(f"precision for {self.name}", precision, self.precisions, few=len(PRECISIONS))
        return self.peak_flops[RECIPES[precision].peak if precision in RECIPES else precision]


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link, described by the alpha-beta model: a message of n bytes takes ``latency + n / bandwidth``.

    Attributes:
        bandwidth: bytes/s in one direction, per device (inside a node) or per node (between nodes).
        latency: seconds for an empty message between two ends, software included.
        reduces: True if its switch adds the data that passes through it (NVLink SHARP, SHARP on InfiniBand).
        joins: most devices that it joins; 0: as many as any link of its kind.
        carried: share of the bandwidth that ordinary software reaches over TCP. 80 % of machines lie between its square and
            1. None if one flow fills the link, or if no TCP is used.
        transport: transport protocol of a network, by its name (``networks.transports``); empty if unknown, and inside a node.
        start: measured seconds before the first message of a collective inside a node; None if unmeasured.
        reached: measured factor on the share of the bandwidth that collectives reach on links of its kind
            (``Efficiency.link_share``); None if unmeasured.
        shared: bytes/s that all devices of a node reach together, where their messages pass through the host's memory; None
            if devices reach each other directly.
        chosen: a sentence about what the user's words left open, the number of ports or the transport; else empty.
    """

    name: str
    kind: Literal["pcie", "nvlink", "fabric", "ethernet", "infiniband", "ici", "loopback", "memory"]
    bandwidth: Fact
    latency: Fact
    aliases: tuple[str, ...] = ()
    note: str = ""
    reduces: bool = False
    joins: int = 0
    carried: Fact | None = None
    transport: str = ""
    start: Fact | None = None
    reached: Fact | None = None
    shared: Fact | None = None
    chosen: str = field(default="", compare=False)
