"""Beats of a frame and which frames are marked."""

from __future__ import annotations

from amaranth.hdl import Mux, Value
from amaranth.lib import data, stream

BEAT = data.StructLayout({"data": 256, "bytes": 6, "first": 1, "last": 1})
"""32 bytes of a frame, byte 0 in the lowest bits; ``bytes`` of them are valid: 32 except in the last beat."""


def beats() -> stream.Signature:
    """A stream of beats."""
    return stream.Signature(BEAT)


def marked(beat: Value) -> Value:
    """Whether the frame that this 256-bit beat begins is IPv4 or IPv6 with a ToS of 0x28 (ECN bits apart)."""
    ethertype, service = beat[96:112], beat[112:128]
    ipv4, ipv6 = ethertype == 0x0008, ethertype == 0xDD86
    traffic_class_high, traffic_class_low = service[:4], service[12:]
    wanted6 = (traffic_class_high == 0x2) & (traffic_class_low[2:] == 0x2)
    return Mux(ipv4, service[10:] == 0x0A, ipv6 & wanted6)
