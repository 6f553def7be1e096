"""What a device and a link are: numbers, each with where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from paceline.errors import unknown

Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16", "fp16", "fp8")
BYTES_PER_ELEMENT: dict[str, int] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 2}
"""Bytes of one element that a layer keeps or passes on. With fp8 only matrix operands have 8 bits; the rest is bf16
(Micikevicius et al. 2022, arXiv:2209.05433, section 4; NVIDIA, Transformer Engine, fp8 primer)."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One number with its source. ``value`` is in SI units (bytes, bytes/s per direction, FLOP/s, seconds, watts)."""

    value: float
    source: str
    date: str


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator (or one CPU) as a data-parallel rank sees it.

    Attributes:
        peak_flops: dense peak per precision, FLOP/s (a multiply-add is two).
        matmul_flops: best measured dense matmul per precision, FLOP/s, where somebody measured it.
        memory: bytes.
        memory_bandwidth: bytes/s.
        link: name of the link to the other devices of its node (see ``paceline hardware list``).
        units: multiprocessors, compute units or cores, where they are known.
        power: the board's limit in watts, where it is known.
        host_link: name of the link to the host's memory, where it is known.
        host_bandwidth: bytes/s of that memory for each device, in the vendor's own system, where they are known.
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
    power: Fact | None = None
    host_link: str = ""
    host_bandwidth: Fact | None = None
    architecture: str = ""
    aliases: tuple[str, ...] = ()
    note: str = ""

    def __hash__(self) -> int:
        """Of the name and the memory: equal devices have them in common, and the tables of rates cannot be hashed."""
        return hash((self.name, self.memory))

    @property
    def chip(self) -> str:
        """The architecture, else the name. Boards of one chip are fitted, and held out, together."""
        return self.architecture or self.name

    def peak(self, precision: str) -> Fact:
        """Dense peak at ``precision``. Raises UserError naming the precisions this device has."""
        if precision not in self.peak_flops:
            raise unknown(f"precision for {self.name}", precision, self.peak_flops)
        return self.peak_flops[precision]


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link, described by the alpha-beta model: a message of n bytes takes ``latency + n / bandwidth``.

    Attributes:
        bandwidth: bytes/s in one direction, per device (inside a node) or per node (between nodes).
        latency: seconds for an empty message between two ends, software included.
        reduces: whether its switch adds up what passes through it (NVLink SHARP, SHARP on InfiniBand).
        carried: share of the bandwidth that ordinary software reaches over TCP. 80 % of machines lie between its square and
            1. None where one flow fills the link, or where no TCP is used.
    """

    name: str
    kind: Literal["pcie", "nvlink", "fabric", "ethernet", "infiniband", "ici", "loopback", "memory"]
    bandwidth: Fact
    latency: Fact
    aliases: tuple[str, ...] = ()
    note: str = ""
    reduces: bool = False
    carried: Fact | None = None
