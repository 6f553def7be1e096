"""Protocols of a collective engine, which trade latency against bandwidth.

The efficiency of a link depends on the size of a message, because the engine chooses for each size the algorithm and the
protocol that it expects to be fastest. NCCL has three protocols: LL (each word has a flag: no barrier, half the bandwidth),
LL128 (a flag every 128 bytes, on NVLink) and Simple (whole chunks, each followed by a barrier).
"""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

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
        ring_s, tree_s: seconds before the first message of an all-reduce as a ring or as trees.
        latency, tree_latency: factor on a link's latency, which is that of the Simple protocol in a ring, by kind of link.
        share: share of the bandwidth that a collective reaches on a link, by kind of link. Without an entry the protocol is not
            used there.
        switch_s, switch_share: seconds before the first message, and share of that bandwidth, of an all-reduce in the switch
            (NVLS). With share 0 the protocol does not support it.
    """

    name: str
    ring_s: float
    tree_s: float
    latency: Mapping[str, float]
    tree_latency: Mapping[str, float]
    share: Mapping[str, float]
    switch_s: float = 0.0
    switch_share: float = 0.0


def _by_kind(other: float, **kinds: float) -> Mapping[str, float]:
    return MappingProxyType(dict.fromkeys(KINDS, other) | kinds)


# Latencies: NVIDIA, NCCL src/graph/tuning.cc, baseLat and hwLat [us], over those of Simple in a ring (NVLink 3.4, PCIe 5.7,
# network 9.6): LL 0.6, 1.0 and 2.7 (trees 0.6, 1.0, 5.0), LL128 1.9, - and 4.0 (1.25, -, 8.5), Simple in trees 4.0, 4.0, 14.
# TCP costs the same with every protocol, and NCCL's sockets reach 0.9 of the bandwidth of gloo's (assumption). Half of
# LL's bytes are flags, 8 of 128 of LL128's. Fitted on one node of 8 H100 (benchmarks/fit_network.py): both shares on NVLink,
# and the switch's time.
LL = Protocol(
    "LL",
    6.6e-6,
    6.8e-6,
    _by_kind(1.0, nvlink=0.6 / 3.4, fabric=0.6 / 3.4, pcie=1.0 / 5.7, infiniband=2.7 / 9.6),
    _by_kind(1.0, nvlink=0.6 / 3.4, fabric=0.6 / 3.4, pcie=1.0 / 5.7, infiniband=5.0 / 9.6),
    _by_kind(0.5, nvlink=0.364, fabric=0.364, ethernet=0.45),
)
LL128 = Protocol(
    "LL128",
    14.0e-6,
    14.0e-6,
    MappingProxyType({"nvlink": 1.9 / 3.4, "infiniband": 4.0 / 9.6, "ethernet": 1.0}),
    MappingProxyType({"nvlink": 1.25 / 3.4, "infiniband": 8.5 / 9.6, "ethernet": 1.0}),
    MappingProxyType({"nvlink": 0.96, "infiniband": 0.92, "ethernet": 0.83}),
)
SIMPLE = Protocol(
    "Simple",
    8.4e-6,
    8.4e-6,
    _by_kind(1.0),
    _by_kind(1.0, nvlink=4.0 / 3.4, fabric=4.0 / 3.4, pcie=4.0 / 5.7, infiniband=14.0 / 9.6),
    _by_kind(1.0, ethernet=0.9),
    switch_s=70.6e-6,
    switch_share=0.842,
)
NCCL = (LL, LL128, SIMPLE)

BARE = (Protocol("one", 0.0, 0.0, _by_kind(1.0), _by_kind(1.0), _by_kind(1.0), 0.0, 1.0),)
"""Protocol without overhead, only the cost of the links, as for gloo on a CPU and in a closed form."""
