"""The segment between two cards, by hand and against the codec."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import card_frames as frame
from card_frames import FAITHFUL, SCALED, Flow, crc32c, pack, unpack
from card_packets import parse
from card_pipe import gradient, message, tcp_frame
from paceline.codecs import PayloadError, decode, encode, get

MARKED, COMPRESSED = 0x28, 0x2C
"""The type of service that asks for compression (INCEPTIONN, MICRO 2018); one bit more says that it was done: docs/nic.md."""

NAMES = {FAITHFUL: "inceptionn", SCALED: "inceptionn-scaled"}


def coded(data: bytes, format: int, k: int) -> bytes:
    return decode(encode(get(NAMES[format], bound=2.0**-k), np.frombuffer(data, np.float32))).tobytes()


def test_the_checksum_is_that_of_rfc_3720() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA and crc32c(b"\xff" * 32) == 0x62A8AB43


def test_a_segment_by_hand() -> None:
    # 1.0 is tag 11 with all its bytes, 0.5 tag 10: floor(0.5 * 2^15) = 0x4000; six zeros; then two raw bytes.
    payload = b"ab" + np.array([1.0, 0.5, 0, 0, 0, 0, 0, 0], "<f4").tobytes() + b"yz"
    packed = pack(payload, [(2, 8), (2, 0)], FAITHFUL, 10)
    rest = bytes.fromhex("0200 0800 0200 0000") + b"abyz" + bytes.fromhex("0b00 0000803f 0040")
    head = b"PN" + bytes([1, 10, 2, 0, 36, 0])
    assert packed == head + struct.pack("<I", crc32c(head + rest)) + rest
    assert unpack(packed) == (payload, MARKED)
    assert pack(payload[:30], [(2, 7)], FAITHFUL, 10) is not None  # 12 + 4 + 2 + 8 bytes are fewer than 30
    assert pack(payload[:26], [(2, 6)], FAITHFUL, 10) is None  # and not fewer than 26


@pytest.mark.parametrize("format", NAMES)
@given(seed=st.integers(0, 999), count=st.integers(40, 3000), k=st.integers(1, 14), raw=st.integers(0, 60))
def test_what_is_packed_is_what_the_codec_gives(format: int, seed: int, count: int, k: int, raw: int) -> None:
    data = gradient(count, seed)
    first = count // 3
    payload = bytes(range(raw)) + data[: 4 * first] + b"xyz" + data[4 * first :]
    packed = pack(payload, [(raw, first), (3, count - first)], format, k)
    if packed is None:
        return
    assert len(packed) < len(payload)
    restored, dscp = unpack(packed)
    expected = coded(data, format, k) if format == FAITHFUL or count <= 1024 else None
    assert dscp == MARKED and restored[:raw] == payload[:raw] and restored[raw + 4 * first :][:3] == b"xyz"
    values = restored[raw : raw + 4 * first] + restored[raw + 4 * first + 3 :]
    if expected is None:  # blocks are counted from the segment's first value
        expected = b"".join(coded(data[at : at + 4096], format, k) for at in range(0, len(data), 4096))
    assert values == expected


@given(st.data())
def test_no_single_change_is_taken_for_a_segment(data: st.DataObject) -> None:
    packed = bytearray(pack(message(gradient(120, 3)), [(48, 120)], FAITHFUL, 10) or b"")
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PayloadError):
        unpack(bytes(packed))


@given(st.binary(max_size=80))
def test_bytes_behind_a_right_checksum_are_restored_or_refused(rest: bytes) -> None:
    head = b"PN" + rest[:6].ljust(6, b"\0")
    whole = head + struct.pack("<I", crc32c(head + rest[6:])) + rest[6:]
    try:
        restored, dscp = unpack(whole)
    except PayloadError:
        return
    assert len(restored) == struct.unpack("<H", whole[6:8])[0] and dscp % 4 == 0


def test_values_of_a_stream_by_hand() -> None:
    stream = (
        b"\1"
        + bytes(7)
        + message(bytes(400), 3)
        + message(bytes(100))
        + message(bytes(60))
        + message(bytes(66))
        + message(bytes(64))
    )
    flow = Flow(first=2**32 - 20, skip=8)
    # 8 of the handshake, 48 announced, 48 + 100 of values, 48 + 60 too short, 48 + 66 no multiple of 4, 48 + 64 of values.
    assert flow.runs(2**32 - 20, stream) == [(104, 25), (48 + 60 + 48 + 66 + 48, 16)]
    assert flow.runs((2**32 - 20 + 103) % 2**32, stream[103:111]) == [(1, 1), (3, 0)]
    assert flow.runs((2**32 - 20 + 106) % 2**32, stream[106:112]) == [(2, 1)]
    assert flow.runs((2**32 - 20 + 106) % 2**32, stream[106:109]) == []
    assert flow.runs((2**32 - 40) % 2**32, bytes(20)) == []  # from before the first byte


def test_a_card_and_its_peer() -> None:
    one, card = tcp_frame(message(gradient(300, 1)), 1, tos=MARKED | 2), frame.Card()
    (packed,) = card.transmit(one)
    tcp = parse(packed)
    assert tcp is not None and tcp.traffic_class == COMPRESSED | 2 and tcp.tcp_fits and tcp.ip_fits
    (host,) = card.receive(packed)
    assert host[:48] == one[:48] and parse(host).traffic_class == MARKED | 2  # type: ignore[union-attr]
    assert host[tcp.payload + 48 :] == coded(gradient(300, 1), FAITHFUL, 10)
    assert card.receive(packed[:-1] + bytes([packed[-1] ^ 4])) == []
