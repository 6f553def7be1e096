"""Ethernet frames with one TCP packet: headers, checksums, and how a card cuts a large one. Plain and slow, for checks."""

from __future__ import annotations

import struct
from dataclasses import dataclass

MARKED, COMPRESSED = 0x28, 0x2C
"""ToS, without its two ECN bits, of what a card compresses (Li et al., MICRO 2018, section VI-B), and of what one has."""
FIN, SYN, RST, PSH, ACK, URG, CWR = 1, 2, 4, 8, 16, 32, 128
ETHERNET_BYTES = 14
_IPV4, _IPV6, _TCP = 0x0800, 0x86DD, 6


@dataclass(frozen=True)
class TcpFrame:
    """An Ethernet frame that is exactly one TCP packet, over IPv4 without options and whole, or IPv6 without extension headers.

    ``tcp`` and ``payload`` are offsets in ``data``.
    """

    data: bytes
    v6: bool
    tcp: int
    payload: int

    @property
    def flags(self) -> int:
        """FIN, SYN, RST and so on."""
        return self.data[self.tcp + 13]

    @property
    def sequence(self) -> int:
        """Of the first byte of the payload."""
        return int.from_bytes(self.data[self.tcp + 4 : self.tcp + 8], "big")

    @property
    def flow(self) -> bytes:
        """Addresses and ports of one direction of the connection."""
        return self.data[self.tcp - (32 if self.v6 else 8) : self.tcp + 4]

    @property
    def traffic_class(self) -> int:
        """IPv4's ToS, IPv6's traffic class: DSCP and ECN."""
        return (self.data[14] & 15) << 4 | self.data[15] >> 4 if self.v6 else self.data[15]

    @property
    def ip_fits(self) -> bool:
        """Whether the IPv4 header's checksum is right."""
        return self.v6 or ones_sum(self.data[14:34]) == 0xFFFF

    @property
    def tcp_fits(self) -> bool:
        """Whether the TCP checksum is right."""
        return ones_sum(self._pseudo_header() + self.data[self.tcp :]) == 0xFFFF

    def _pseudo_header(self) -> bytes:
        addresses = self.data[self.tcp - (32 if self.v6 else 8) : self.tcp]
        return addresses + struct.pack(">II", len(self.data) - self.tcp, _TCP)

    def changed(
        self, payload: bytes, *, dscp: int | None = None, segment: int = 0, offset: int = 0, last: bool = True
    ) -> bytes:
        """The frame with another payload, right lengths and right checksums.

        Args:
            payload: bytes behind the TCP header.
            dscp: set where given; the ECN bits stay.
            segment: the frame is this one of those that a large packet is cut into: its number,
            offset: where in the packet's payload it begins,
            last: and whether it is the last, which alone keeps FIN and PSH.
        """
        head = bytearray(self.data[: self.payload])
        tcp = self.tcp
        if dscp is not None:
            value = dscp & 0xFC | self.traffic_class & 3
            head[14:16] = [0x60 | value >> 4, (value & 15) << 4 | head[15] & 15] if self.v6 else [head[14], value]
        if self.v6:
            head[18:20] = struct.pack(">H", len(head) - 54 + len(payload))
        else:
            number = int.from_bytes(head[18:20], "big")
            head[16:20] = struct.pack(">HH", len(head) - 14 + len(payload), (number + segment) % 65536)
            head[24:26] = b"\0\0"
            head[24:26] = struct.pack(">H", 0xFFFF ^ ones_sum(head[14:34]))
        head[tcp + 4 : tcp + 8] = struct.pack(">I", (self.sequence + offset) % 2**32)
        head[tcp + 13] &= (0xFF if segment == 0 else 0xFF ^ CWR) & (0xFF if last else 0xFF ^ FIN ^ PSH)
        head[tcp + 16 : tcp + 18] = b"\0\0"
        made = TcpFrame(bytes(head) + payload, self.v6, tcp, self.payload)
        sum_ = 0xFFFF ^ ones_sum(made._pseudo_header() + made.data[tcp:])
        head[tcp + 16 : tcp + 18] = struct.pack(">H", sum_)
        return bytes(head) + payload


def parse(data: bytes) -> TcpFrame | None:
    """The TCP packet of a frame, None where it is anything else or its lengths do not agree."""
    if len(data) < 54:
        return None
    kind = int.from_bytes(data[12:14], "big")
    if kind == _IPV4:
        fragment = int.from_bytes(data[20:22], "big") & 0x3FFF
        if data[14] != 0x45 or fragment or data[23] != _TCP or int.from_bytes(data[16:18], "big") != len(data) - 14:
            return None
        tcp = 34
    elif kind == _IPV6 and len(data) >= 74:
        if data[14] >> 4 != 6 or data[20] != _TCP or int.from_bytes(data[18:20], "big") != len(data) - 54:
            return None
        tcp = 54
    else:
        return None
    payload = tcp + (data[tcp + 12] >> 4) * 4
    return TcpFrame(data, kind == _IPV6, tcp, payload) if tcp + 20 <= payload <= len(data) else None


def ones_sum(data: bytes | bytearray) -> int:
    """The ones' complement sum of 16-bit big-endian words, zero-padded (RFC 1071)."""
    padded = bytes(data) + b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f">{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def cut(frame: TcpFrame, size: int) -> list[bytes]:
    """The frames that a card cuts a large one into, ``size`` bytes of payload each (TSO): with right lengths and checksums."""
    payload = frame.data[frame.payload :]
    starts = range(0, len(payload), size) if payload else range(1)
    return [
        frame.changed(payload[at : at + size], segment=number, offset=at, last=at + size >= len(payload))
        for number, at in enumerate(starts)
    ]
