"""The segments between two cards, in plain Python (docs/wire-format.md): what the card of csrc/nic is checked against.

The packing of values is NumPy's reference codec. A flow's bytes are kept and read from their beginning each time, where the
card follows them as they come.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from card_packets import ACK, COMPRESSED, MARKED, RST, SYN, URG, TcpFrame, cut, parse
from paceline.array_types import F32
from paceline.codecs.container import PayloadError
from paceline.codecs.counter import key
from paceline.codecs.reference.inceptionn import Inceptionn
from paceline.codecs.reference.inceptionn_scaled import InceptionnScaled

MAGIC = b"PN"
VERBATIM, FAITHFUL, SCALED = 0, 1, 2
HEADER_BYTES, RUN_BYTES, PREAMBLE_BYTES, HANDSHAKE_BYTES = 12, 4, 48, 8
LEAST_DATA = 64
"""Messages of fewer bytes of data are not compressed."""
LEAST_SEGMENT = 64
"""Large packets that would be cut into smaller segments pass as they are."""
_BLOCK, _DIRECTORY = 1024, 4
_NO_KEY = key(0, 0)
Runs = list[tuple[int, int]]
"""Of a segment, in order: so many bytes as they are, then so many fp32 values."""


def encode_values(x: F32, format: int, k: int) -> bytes:
    """The body of the values of one segment. Raises ValueError for NaN and infinity where they have no form."""
    if format == FAITHFUL:
        return _encode(Inceptionn(bound=2.0**-k), x)
    return b"".join(_encode(InceptionnScaled(bound=2.0**-k), x[at : at + _BLOCK]) for at in range(0, x.size, _BLOCK))


def decode_values(body: bytes, count: int, format: int, k: int) -> F32:
    """The values of a body of one segment. Raises PayloadError for what no encoder wrote."""
    if not 1 <= k <= (15 if format == FAITHFUL else 14):
        raise PayloadError(f"a bound of 2^-{k}")
    if format == FAITHFUL:
        return _decode(Inceptionn(bound=2.0**-k), body, count)
    parts = []
    for at in range(0, count, _BLOCK):
        size = min(_BLOCK, count - at)
        used = _scaled_block_bytes(body, size)
        parts.append(_decode(InceptionnScaled(bound=2.0**-k), body[:used], size))
        body = body[used:]
    if body:
        raise PayloadError("bytes behind the last block")
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _encode(codec: Inceptionn | InceptionnScaled, x: F32) -> bytes:
    body = np.zeros(codec.body_range(x.size)[1], np.uint8)
    return body[_DIRECTORY : codec.encode_body(np.ascontiguousarray(x), body, _NO_KEY, 0)].tobytes()


def _decode(codec: Inceptionn | InceptionnScaled, body: bytes, count: int) -> F32:
    exponents = 0 if isinstance(codec, Inceptionn) else 2
    if len(body) < exponents:
        raise PayloadError("a block without its exponent")
    whole = struct.pack("<I", len(body) - exponents) + body
    return codec.decode_body(np.frombuffer(whole, np.uint8), count)


def _scaled_block_bytes(body: bytes, count: int) -> int:
    """Where a block of ``count`` values ends: behind its exponent and its bursts, whose tags say their bytes."""
    if body[:2] == struct.pack("<h", -32768):
        return 2
    at = 2
    for _ in range(-(-count // 8)):
        tags = int.from_bytes(body[at : at + 2], "little")
        at += 2 + sum((0, 1, 2, 4)[tags >> 2 * lane & 3] for lane in range(8))
    return at


def crc32c(data: bytes) -> int:
    """CRC-32C of RFC 3720, a byte at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def _crc_of_byte(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc


_CRC = [_crc_of_byte(byte) for byte in range(256)]


def pack(payload: bytes, runs: Runs, format: int, k: int) -> bytes | None:
    """The packed segment of a segment's payload: None where it would not be smaller, or a value has no form."""
    raw, values = [], []
    for raw_bytes, count in runs:
        raw.append(payload[:raw_bytes])
        values.append(payload[raw_bytes : raw_bytes + 4 * count])
        payload = payload[raw_bytes + 4 * count :]
    restored = sum(map(len, raw)) + sum(map(len, values))
    try:
        body = encode_values(np.frombuffer(b"".join(values), np.float32), format, k)
    except ValueError:
        return None
    made = _with_header(format, k, restored, runs, b"".join(raw) + body)
    return made if len(made) < restored else None


def round_in_place(payload: bytes, runs: Runs, format: int, k: int) -> bytes:
    """A segment with each value replaced by what decoding its code gives; as it came where a value has no form."""
    places, at = list[slice](), 0
    for raw, count in runs:
        places.append(slice(at + raw, at + raw + 4 * count))
        at = places[-1].stop
    values = np.frombuffer(b"".join(payload[place] for place in places), np.float32)
    try:
        decoded = decode_values(encode_values(values, format, k), values.size, format, k).tobytes()
    except ValueError:
        return payload
    rounded = bytearray(payload)
    for place in places:
        size = place.stop - place.start
        rounded[place], decoded = decoded[:size], decoded[size:]
    return bytes(rounded)


def _with_header(format: int, k: int, restored: int, runs: Runs, rest: bytes) -> bytes:
    head = MAGIC + struct.pack("<BBBBH", format, k, len(runs), 0, restored)
    rest = b"".join(struct.pack("<HH", *run) for run in runs) + rest
    return head + struct.pack("<I", crc32c(head + rest)) + rest


def unpack(packed: bytes) -> tuple[bytes, int]:
    """A segment's payload and its DSCP from what a card sent. Raises PayloadError for what none did."""
    if len(packed) < HEADER_BYTES or packed[:2] != MAGIC:
        raise PayloadError("no header of a card")
    format, k, count, zero, restored, sum_ = struct.unpack("<BBBBHI", packed[2:HEADER_BYTES])
    if format > SCALED or zero or not restored or crc32c(packed[:8] + packed[HEADER_BYTES:]) != sum_:
        raise PayloadError("a damaged header or checksum")
    if format == VERBATIM:
        if count or k & 3 or len(packed) != HEADER_BYTES + restored:
            raise PayloadError("a damaged verbatim segment")
        return packed[HEADER_BYTES:], k
    at = HEADER_BYTES + RUN_BYTES * count
    if len(packed) < at:
        raise PayloadError("runs are missing")
    runs: Runs = [struct.unpack_from("<HH", packed, HEADER_BYTES + RUN_BYTES * i) for i in range(count)]
    raw_bytes, values = sum(run[0] for run in runs), sum(run[1] for run in runs)
    if raw_bytes + 4 * values != restored or not values or len(packed) < at + raw_bytes:
        raise PayloadError("runs that do not add up")
    raw, body = packed[at : at + raw_bytes], packed[at + raw_bytes :]
    decoded = decode_values(body, values, format, k).tobytes()
    parts = []
    for run_raw, run_values in runs:
        parts += [raw[:run_raw], decoded[: 4 * run_values]]
        raw, decoded = raw[run_raw:], decoded[4 * run_values :]
    return b"".join(parts), MARKED


@dataclass
class Flow:
    """One direction of a connection: every byte that was sent, by its distance from the first."""

    first: int
    skip: int
    known: dict[int, int] = field(default_factory=dict)

    def place(self, sequence: int) -> int:
        """Distance of a sequence number from the first, within 2 GiB of it."""
        return (sequence - self.first + 2**31) % 2**32 - 2**31

    def regions(self) -> tuple[list[tuple[int, int]], int]:
        """Where fp32 values lie, first byte and end; and how far the messages are known, none where they stop making sense."""
        found: list[tuple[int, int]] = []
        at = self.skip
        while all(at + i in self.known for i in range(PREAMBLE_BYTES)):
            size, opcode, _, _, length, _ = struct.unpack("<6Q", bytes(self.known[at + i] for i in range(PREAMBLE_BYTES)))
            data = length if opcode <= 1 else 0
            if opcode > 3 or data > 2**40 or size != PREAMBLE_BYTES + data:
                return found, 2**62
            at += PREAMBLE_BYTES
            if data >= LEAST_DATA and data % 4 == 0:
                found.append((at, at + data))
            at += data
        while at in self.known:
            at += 1
        return found, at

    def runs(self, sequence: int, payload: bytes) -> Runs:
        """Take a segment, and cut it into runs."""
        begin = self.place(sequence)
        for at, byte in enumerate(payload):
            self.known.setdefault(begin + at, byte)
        regions, end = self.regions()
        at, stop, runs = begin, begin + len(payload), []
        for low, high in regions if begin <= end else ():
            first = max(at, low) + (low - max(at, low)) % 4
            count = (min(stop, high) - first) // 4
            if count > 0:
                runs.append((first - at, count))
                at = first + 4 * count
        return [*runs, *([(stop - at, 0)] if runs and at < stop else [])]


@dataclass
class Card:
    """A card without a wire: frames of the host to frames of the wire, and back."""

    format: int = FAITHFUL
    k: int = 10
    mtu: int = 1500
    flows: dict[bytes, Flow] = field(default_factory=dict)

    def transmit(self, data: bytes, gso_size: int = 0) -> list[bytes]:
        """What goes on the wire for a frame of the host, cut to ``gso_size`` bytes of payload where that is not 0."""
        frame = parse(data)
        if frame is None:
            return [data]
        dscp, payload = frame.traffic_class & 0xFC, data[frame.payload :]
        if frame.flags & (SYN | RST):
            self.flows.pop(frame.flow, None)
            if frame.flags & SYN and dscp == MARKED:
                skip = 0 if frame.flags & ACK else HANDSHAKE_BYTES
                self.flows[frame.flow] = Flow((frame.sequence + 1) % 2**32, skip)
            return [data]
        if not (frame.ip_fits and (gso_size or frame.tcp_fits)):
            return [data]
        segments = cut(frame, gso_size) if gso_size else [data]
        if dscp not in (MARKED, COMPRESSED) or frame.flags & URG or not payload or 0 < gso_size < LEAST_SEGMENT:
            return segments
        if dscp == COMPRESSED:
            return self._guarded(frame, gso_size or len(payload))
        flow = self.flows.setdefault(frame.flow, Flow(frame.sequence, 0))
        flow.runs(frame.sequence, payload)
        return [self._compressed(flow, segment) for segment in segments]

    def _compressed(self, flow: Flow, segment: bytes) -> bytes:
        frame = parse(segment)
        assert frame is not None
        payload = segment[frame.payload :]
        runs = flow.runs(frame.sequence, payload)
        if not runs or len(runs) > 255:
            return segment
        packed = pack(payload, runs, self.format, self.k)
        if packed is None:
            return frame.changed(round_in_place(payload, runs, self.format, self.k))
        return frame.changed(packed, dscp=COMPRESSED)

    def _guarded(self, frame: TcpFrame, size: int) -> list[bytes]:
        """Segments that a peer would take for a card's own travel inside one, in halves where they would not fit."""
        payload, made = frame.data[frame.payload :], list[bytes]()

        def put(at: int, n: int, last: bool) -> None:
            part = payload[at : at + n]
            wrap = part[:2] == MAGIC
            if wrap and frame.payload + n + HEADER_BYTES > self.mtu + 14:
                put(at, n // 2, False)
                return put(at + n // 2, n - n // 2, last)
            part = _with_header(VERBATIM, COMPRESSED, n, [], part) if wrap else part
            made.append(frame.changed(part, segment=len(made), offset=at, last=last))

        for at in range(0, len(payload), size):
            put(at, min(size, len(payload) - at), at + size >= len(payload))
        return made

    def receive(self, data: bytes) -> list[bytes]:
        """What the host gets for a frame of the wire: nothing where a card's segment is damaged."""
        frame = parse(data)
        ours = frame is not None and not frame.flags & (SYN | RST | URG) and frame.traffic_class & 0xFC == COMPRESSED
        if frame is None or not ours or data[frame.payload :][:2] != MAGIC or not frame.ip_fits:
            return [data]
        try:
            payload, dscp = unpack(data[frame.payload :])
        except PayloadError:
            return []
        return [frame.changed(payload, dscp=dscp)] if frame.tcp_fits else []
