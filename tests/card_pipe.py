"""The card's executable without a network, frames of gloo messages to feed it, and what its large packets are on a wire."""

from __future__ import annotations

import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np

from card_packets import ACK, ETHERNET_BYTES, cut, parse
from paceline.lab import card

MISSING = "" if card.program().is_file() else "the card is missing (make native)"
NEEDS_CHECKSUM, GSO_TCP4, GSO_TCP6 = 1, 1, 4


@dataclass(frozen=True)
class Offload:
    """struct virtio_net_hdr."""

    flags: int = 0
    gso_type: int = 0
    header_bytes: int = 0
    gso_size: int = 0
    checksum_start: int = 0
    checksum_offset: int = 0

    def __bytes__(self) -> bytes:
        fields = (self.flags, self.gso_type, self.header_bytes, self.gso_size, self.checksum_start, self.checksum_offset)
        return struct.pack("=BBHHHH", *fields)


NONE = Offload()


class PipeCard:
    """``_nic_card --pipe``."""

    def __init__(self, *words: str, codec: str = "inceptionn", k: int = 10, mtu: int = 1500) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.statistics = Path(self.directory.name) / "h0.statistics"
        options = ("--codec", codec, "--k", str(k), "--mtu", str(mtu), "--statistics", str(self.statistics))
        command = [str(card.program()), "--pipe", *options, *words]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.process.stdin.close()
        code = self.process.wait(timeout=200)
        said = self.process.stderr.read().decode()
        self.process.stdout.close()
        self.process.stderr.close()
        self.directory.cleanup()
        assert (code, said) == (0, "")

    def ask(self, kind: bytes, frame: bytes = b"", offload: Offload = NONE) -> list[tuple[Offload, bytes]]:
        """One request and its answer."""
        assert self.process.stdin and self.process.stdout
        request = kind + bytes(offload) + frame
        self.process.stdin.write(struct.pack("=I", len(request)) + request)
        self.process.stdin.flush()
        answers = []
        for _ in range(self._number()):
            data = self.process.stdout.read(self._number())
            answers.append((Offload(*struct.unpack("=BBHHHH", data[:10])), data[10:]))
        return answers

    def _number(self) -> int:
        assert self.process.stdout and self.process.stderr
        data = self.process.stdout.read(4)
        if len(data) < 4:
            raise AssertionError(f"the card has ended: {self.process.stderr.read().decode()}")
        return int(struct.unpack("=I", data)[0])

    def transmit(self, frame: bytes, gso_size: int = 0) -> list[bytes]:
        """What goes on the wire, large packets cut as the kernel would."""
        return [one for answer in self.ask(b"T", *host_frame(frame, gso_size)) for one in on_wire(*answer)]

    def receive(self, frame: bytes) -> list[bytes]:
        """What the host gets, large packets cut as the kernel would."""
        return [one for answer in self.ask(b"R", frame) for one in on_wire(*answer)]

    def counters(self) -> card.CardCounters:
        """What it has counted."""
        found = card.read(self.statistics.parent, 0)
        assert found is not None
        return found


def host_frame(frame: bytes, gso_size: int) -> tuple[bytes, Offload]:
    """A frame as the kernel hands it down: whole, or for the card to cut and complete."""
    if not gso_size:
        return frame, NONE
    tcp = parse(frame)
    assert tcp is not None
    kind = GSO_TCP6 if tcp.v6 else GSO_TCP4
    return frame, Offload(NEEDS_CHECKSUM, kind, tcp.payload, gso_size, tcp.tcp, 16)


def on_wire(offload: Offload, frame: bytes) -> list[bytes]:
    """The frames that the kernel makes of one with offloads."""
    tcp = parse(frame)
    if offload.gso_size and tcp is not None:
        assert offload.flags == NEEDS_CHECKSUM and (offload.checksum_start, offload.checksum_offset) == (tcp.tcp, 16)
        return cut(tcp, offload.gso_size)
    if offload.flags & NEEDS_CHECKSUM and tcp is not None:
        return [tcp.changed(frame[tcp.payload :])]
    return [frame]


def tcp_frame(
    payload: bytes,
    sequence: int,
    *,
    port: int = 40000,
    tos: int = 0x28,
    flags: int = ACK,
    v6: bool = False,
    options: bytes = b"\x01\x01\x08\x0a" + bytes(8),
    acknowledged: int = 77,
) -> bytes:
    """A whole frame from host 1 to host 2, checksums right; by default with the time stamps that Linux sends."""
    tcp_bytes = 20 + len(options)
    tcp = (
        struct.pack(">HHIIBBHHH", port, 29500, sequence % 2**32, acknowledged, tcp_bytes // 4 << 4, flags, 501, 0, 0) + options
    )
    if v6:
        head = struct.pack(">IHBB", 6 << 28 | tos << 20 | 0xABCDE, 0, 6, 64) + bytes(15) + b"\1" + bytes(15) + b"\2"
    else:
        head = struct.pack(
            ">BBHHHBBH4s4s", 0x45, tos, 40 + len(options), 4242, 0x4000, 64, 6, 0, b"\x0a\x4d\0\1", b"\x0a\x4d\0\2"
        )
    ethernet = b"\2\0\0\0\0\2\2\0\0\0\0\1" + (b"\x86\xdd" if v6 else b"\x08\0")
    bare = bytearray(ethernet + head + tcp)
    at = ETHERNET_BYTES + (4 if v6 else 2)
    bare[at : at + 2] = struct.pack(">H", tcp_bytes + (0 if v6 else 20))
    frame = parse(bytes(bare))
    assert frame is not None
    return frame.changed(payload)


def message(data: bytes, opcode: int = 1, slot: int = 7) -> bytes:
    """A message of gloo's; opcodes 2 and 3 only announce ``data``."""
    size = 48 + (len(data) if opcode < 2 else 0)
    return struct.pack("<6Q", size, opcode, slot, 0, len(data), 0) + (data if opcode < 2 else b"")


def gradient(count: int, seed: int, sigma: float = 0.01) -> bytes:
    """fp32 values, normal."""
    return (np.random.default_rng(seed).standard_normal(count) * sigma).astype("<f4").tobytes()


def frames(stream: bytes, cuts: Sequence[int], sequence: int, **more: object) -> list[bytes]:
    """The stream in segments that end at ``cuts``."""
    edges = [0, *sorted({c for c in cuts if 0 < c < len(stream)}), len(stream)]
    return [tcp_frame(stream[a:b], sequence + a, **more) for a, b in pairwise(edges)]  # type: ignore[arg-type]
