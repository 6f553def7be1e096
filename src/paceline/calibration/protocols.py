"""Protocols of a collective engine, which trade latency against bandwidth.

The efficiency of a link depends on the size of a message, because the engine chooses for each size the algorithm and the
protocol that it expects to be fastest. NCCL has three protocols: LL (each word has a flag: no barrier, half the bandwidth),
LL128 (a flag every 128 bytes, on NVLink) and Simple (whole chunks, each followed by a barrier).
"""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from paceline.hardware.device import Link

KINDS = ("pcie", "nvlink", "fabric", "ici", "ethernet", "infiniband", "loopback", "memory")


def _received(values: dict[str, float]) -> MappingProxyType[str, float]:
    return MappingProxyType(values)


copyreg.pickle(MappingProxyType, lambda view: (_received, (dict(view),)))
"""Registration of a pickler: ``schedule compare --jobs`` passes constants between processes, and Python cannot pickle a
read-only view."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """One of an engine's protocols.

    Attributes:
        ring_s, tree_s: seconds before the first message of an all-reduce as a ring or as trees, where no measured start of the
            link inside a node replaces them.
        latency, tree_latency: factor on a link's latency, which is that of the Simple protocol in a ring, by kind of link, or
            by a transport of it that differs.
        share: share of the bandwidth that a collective reaches on a link, by kind of link. Without an entry the protocol is not
            used there.
        start: factor on the measured seconds before the first message inside a node (``Link.start``), which are those of LL.
        copy: time that a device takes to copy its own part, over the time that a part takes on the link, by kind of link.
        switch_s, switch_share: seconds before the first message, and share of that bandwidth, of an all-reduce in the switch
            (NVLS). With share 0 the protocol does not support it.
        alltoall_start, alltoall_share: the same as ``start`` and ``share`` for an all-to-all inside a node. Without an entry
            the protocol is not used there.
        alltoall_latencies: latencies of the protocol before the first message of an all-to-all.
    """

    name: str
    ring_s: float
    tree_s: float
    latency: Mapping[str, float]
    tree_latency: Mapping[str, float]
    share: Mapping[str, float]
    copy: Mapping[str, float]
    alltoall_share: Mapping[str, float] = field(default_factory=dict)
    start: float = 1.0
    switch_s: float = 0.0
    switch_share: float = 0.0
    alltoall_start: float = 1.0
    alltoall_latencies: float = 0.0

    @staticmethod
    def of_link(values: Mapping[str, float], link: Link) -> float:
        """Return the value of a link's transport, else of its kind, else 1."""
        return values.get(link.transport) or values.get(link.kind, 1.0)


def by_kind(values: Mapping[str, float]) -> Mapping[str, float]:
    """Return values by kind of link. ``other`` is that of kinds without an entry, and ``fabric`` takes that of ``nvlink``."""
    named = dict(values)
    base = dict.fromkeys(KINDS, named.pop("other")) if "other" in named else {}
    if "nvlink" in named:
        base["fabric"] = named["nvlink"]
    return MappingProxyType(base | named)


@cache
def nccl() -> tuple[Protocol, ...]:
    """Return NCCL's protocols, that of the least latency first. The reader of TOML is imported only in this function."""
    import tomllib

    rows = tomllib.loads(files("paceline.calibration").joinpath("collectives.toml").read_text(encoding="utf-8"))["protocol"]

    def values(row: Mapping[str, Any]) -> dict[str, Any]:
        return {key: by_kind(value) if isinstance(value, Mapping) else value for key, value in row.items()}

    return tuple(Protocol(**values(row)) for row in rows)


_ONE, _NO = by_kind({"other": 1.0}), by_kind({"other": 0.0})
BARE = (Protocol("one", 0.0, 0.0, _ONE, _ONE, _ONE, _NO, _ONE, switch_share=1.0),)
"""Protocol without overhead, only the cost of the links, as for gloo on a CPU and in a closed form."""
