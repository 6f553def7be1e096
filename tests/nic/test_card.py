"""The card without a network against card_frames.py, frame by frame: whatever the host or the wire brings."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import card_frames as frame
from card_packets import ACK, COMPRESSED, FIN, PSH, RST, SYN, URG, cut, parse
from card_pipe import MISSING, NONE, Offload, PipeCard, frames, gradient, host_frame, message, on_wire, tcp_frame
from paceline.codecs import decode, encode, get
from paceline.errors import UserError
from paceline.lab.card import program
from paceline.nic.verilated import library

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
PORTS = count(1024)
"""A flow's own for every case, so that one card serves all."""
FORMATS = {"inceptionn": frame.FAITHFUL, "inceptionn-scaled": frame.SCALED}


@pytest.fixture(scope="module")
def faithful() -> Iterator[PipeCard]:
    with PipeCard() as card:
        yield card


@pytest.fixture(scope="module")
def scaled() -> Iterator[PipeCard]:
    with PipeCard(codec="inceptionn-scaled", k=6, mtu=9000) as card:
        yield card


@pytest.fixture(scope="module")
def merging() -> Iterator[PipeCard]:
    with PipeCard("--merge") as card:
        yield card


def new_port() -> int:
    return 1024 + next(PORTS) % 60000


def payloads(found: list[bytes]) -> bytes:
    return b"".join(one[tcp.payload :] for one in found if (tcp := parse(one)))


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Messages of gradients, of bytes that are none, short ones, announcements; now and then something else."""
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["gradient", "gradient", "large", "bytes", "short", "announce", "zeros", "nonsense"]))
        size, seed = draw(st.integers(16, 700)), draw(st.integers(0, 99))
        if kind in ("gradient", "large"):
            parts.append(message(gradient(size, seed, 0.02 if kind == "gradient" else 30.0)))
        elif kind == "zeros":
            parts.append(message(bytes(4 * size)))
        elif kind == "bytes":
            parts.append(message(random.Random(seed).randbytes(size)))
        elif kind == "nonsense":
            parts.append(random.Random(seed).randbytes(size))
        else:
            parts.append(
                message(bytes(size % 64), 1) if kind == "short" else message(bytes(size), draw(st.sampled_from([2, 3])))
            )
    return b"".join(parts)


@given(data=st.data(), stream=streams())
def test_any_order_of_any_segments_is_as_the_oracle_says(data: st.DataObject, stream: bytes, faithful: PipeCard) -> None:
    port, v6 = new_port(), data.draw(st.booleans(), "v6")
    sequence = data.draw(st.sampled_from([1, 2**31 - 500, 2**32 - 700]), "sequence")
    card = frame.Card()
    sent = frames(stream, data.draw(st.lists(st.integers(1, len(stream)), max_size=8), "cuts"), sequence, port=port, v6=v6)
    if data.draw(st.booleans(), "opened"):
        passive = data.draw(st.booleans(), "passive")
        opening = tcp_frame(b"", sequence - 1, port=port, v6=v6, flags=SYN | ACK * passive)
        assert faithful.transmit(opening) == card.transmit(opening) == [opening]
        if not passive:
            stream = b"\1" + bytes(7) + stream
            sent = frames(
                stream, [8, *data.draw(st.lists(st.integers(1, len(stream)), max_size=8))], sequence, port=port, v6=v6
            )
    for _ in range(data.draw(st.integers(0, 3), "disorder")):  # duplicates, reordering, loss, another cut of the same bytes
        what, at = data.draw(st.sampled_from("dsl")), data.draw(st.integers(0, len(sent) - 1))
        if what == "d":
            begin = data.draw(st.integers(0, len(stream) - 1))
            again = stream[begin : begin + data.draw(st.integers(1, 1448))]
            sent.insert(data.draw(st.integers(0, len(sent))), tcp_frame(again, sequence + begin, port=port, v6=v6))
        elif what == "s":
            sent.insert(data.draw(st.integers(0, len(sent) - 1)), sent.pop(at))
        elif len(sent) > 1:
            sent.pop(at)
    for one in sent:
        wire = faithful.transmit(one)
        assert wire == card.transmit(one)
        for packed in wire:
            host = faithful.receive(packed)
            assert host == card.receive(packed)
            assert host == ([one] if packed == one else host)
            assert len(packed) <= len(one) and [len(h) for h in host] == [len(one)]
            tcp, before = parse(host[0]), parse(one)
            assert tcp and before and tcp.tcp_fits and tcp.ip_fits and host[0][: tcp.tcp + 16] == one[: tcp.tcp + 16]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("v6", [False, True])
@given(seed=st.integers(0, 2**16), size=st.integers(64, 3000), mss=st.sampled_from([64, 100, 536, 1428, 1448, 8948]))
def test_large_packets_are_cut_compressed_and_put_together(
    name: str, v6: bool, faithful: PipeCard, scaled: PipeCard, merging: PipeCard, seed: int, size: int, mss: int
) -> None:
    pipe, k = (faithful, 10) if name == "inceptionn" else (scaled, 6)
    port, card = new_port(), frame.Card(FORMATS[name], k)
    data = gradient(size, seed)
    large = tcp_frame(message(data), 1000, port=port, v6=v6, flags=ACK | PSH | FIN * (seed % 2))
    wire = pipe.transmit(large, mss)
    assert wire == card.transmit(large, mss)
    host = [one for packed in wire for one in pipe.receive(packed)]
    merged = [answer for packed in wire for answer in merging.ask(b"R", packed)] + merging.ask(b"F")
    assert [one for answer in merged for one in on_wire(*answer)] == host
    all_shrank = all(len(packed) < len(one) for packed, one in zip(wire, host, strict=True))
    assert len(merged) < len(wire) or len(wire) < 3 or not all_shrank
    whole = payloads(host)
    assert whole[:48] == message(data)[:48] and len(whole) == 48 + 4 * size
    if all_shrank and mss % 4 == 0 and name == "inceptionn":  # no value is cut by a segment's end, and none is sent as it is
        expected = decode(encode(get("inceptionn"), np.frombuffer(data, np.float32)))
        assert whole[48:] == expected.tobytes()


def test_neighbours_of_several_flows_are_put_together_in_order(merging: PipeCard, faithful: PipeCard) -> None:
    ports = [new_port() for _ in range(11)]  # more than are kept open
    wire = {p: faithful.transmit(tcp_frame(message(gradient(3000, p)), 5, port=p), 1448) for p in ports}
    expected = {p: [one for packed in wire[p] for one in faithful.receive(packed)] for p in ports}
    plain = {p: tcp_frame(b"", 9, port=p) for p in ports}
    answers = []
    for step in range(max(map(len, wire.values()))):
        for p in ports:
            if step < len(wire[p]):
                answers += merging.ask(b"R", wire[p][step])
            if step == 3:  # what is not ours must not overtake
                answers += merging.ask(b"R", plain[p])
    answers += merging.ask(b"F")
    for p in ports:
        own = [
            one for answer in answers for one in on_wire(*answer) if (tcp := parse(one)) and tcp.flow == parse(plain[p]).flow
        ]  # type: ignore[union-attr]
        assert own == [*expected[p][:4], plain[p], *expected[p][4:]]


def test_a_frame_that_passes_is_byte_for_byte_what_came(faithful: PipeCard) -> None:
    data = message(gradient(300, 1))
    plain = tcp_frame(data, 1, port=new_port(), tos=0)
    ipv4, ipv6 = tcp_frame(data, 1, port=new_port()), tcp_frame(data, 1, port=new_port(), v6=True)
    options = ipv4[:14] + b"\x46" + ipv4[15:16] + struct.pack(">H", len(ipv4) - 10) + ipv4[18:34] + bytes(4) + ipv4[34:]
    cases = {
        "unmarked": plain,
        "other mark": tcp_frame(data, 1, port=new_port(), tos=0x20),
        "SYN": tcp_frame(data, 1, port=new_port(), flags=SYN),
        "RST": tcp_frame(data, 1, port=new_port(), flags=RST | ACK),
        "URG": tcp_frame(data, 1, port=new_port(), flags=URG | ACK),
        "no payload": tcp_frame(b"", 1, port=new_port()),
        "UDP": ipv4[:23] + b"\x11" + ipv4[24:],
        "first fragment": ipv4[:20] + b"\x20\x00" + ipv4[22:],
        "other fragment": ipv4[:20] + b"\x00\x10" + ipv4[22:],
        "IPv4 options": options,
        "IPv6 fragment": ipv6[:20] + b"\x2c" + ipv6[21:],
        "IPv6 hop by hop": ipv6[:20] + b"\x00" + ipv6[21:],
        "VLAN": ipv4[:12] + b"\x81\0\0\x05" + ipv4[12:],
        "ARP": b"\xff" * 6 + ipv4[6:12] + b"\x08\x06" + bytes(28),
        "padding": ipv4 + bytes(6),
        "truncated": ipv4[:-1],
        "header alone": ipv4[:60],
        "wrong TCP checksum": ipv4[:-1] + bytes([ipv4[-1] ^ 1]),
        "wrong IP checksum": ipv4[:22] + bytes([ipv4[22] ^ 1]) + ipv4[23:],
        "empty": b"",
    }
    for what, one in cases.items():
        for kind in (b"T", b"R"):
            assert faithful.ask(kind, one) == [(NONE, one)], what
    for offload in (Offload(1, 1, 66, 1448, 34, 16), Offload(1, 0, 66, 0, 34, 16), Offload(1, 1, 66, 20, 34, 16)):
        for kind in (b"T", b"R"):
            assert faithful.ask(kind, plain, offload) == [(offload, plain)]
    for offload in (
        Offload(1, 1, 66, 20, 34, 16),
        Offload(1, 3, 66, 1448, 34, 16),
        Offload(1, 0, 66, 0, 30, 16),
        Offload(0, 1, 66, 500),
    ):
        assert faithful.ask(b"T", ipv4, offload) == [(offload, ipv4)]  # marked, but none that the card can cut or complete


@given(data=st.binary(max_size=200), kind=st.sampled_from([b"T", b"R"]))
def test_random_bytes_pass(data: bytes, kind: bytes, faithful: PipeCard) -> None:
    assert faithful.ask(kind, data) == [(NONE, data)]


@given(
    seed=st.integers(0, 99),
    count=st.integers(16, 700),
    spread=st.sampled_from([0.02, 0.5, 1.0]),
    cuts=st.lists(st.integers(1, 180)),
)
def test_whether_a_segment_shrinks_does_not_change_what_arrives(
    seed: int, count: int, spread: float, cuts: list[int], faithful: PipeCard, scaled: PipeCard
) -> None:
    values = gradient(count, seed, spread)
    stream, port = message(values), new_port()
    sent = frames(stream, [4 * cut for cut in cuts if 4 * cut < len(stream)], 1, port=port)
    restored = [faithful.receive(faithful.transmit(one)[0])[0] for one in sent]
    codec = get("inceptionn", bound=2.0**-10)
    assert payloads(restored) == stream[: -len(values)] + decode(encode(codec, np.frombuffer(values, np.float32))).tobytes()
    card = frame.Card(frame.SCALED, 6, 9000)
    for one in sent:
        wire = scaled.transmit(one)
        assert wire == card.transmit(one) and scaled.receive(wire[0]) == card.receive(wire[0])


def test_what_coding_does_not_change_passes_untouched(faithful: PipeCard, scaled: PipeCard) -> None:
    large = tcp_frame(message(gradient(2000, 1, 1e6)), 1, port=new_port())
    assert faithful.ask(b"T", *host_frame(large, 1448)) == [(host_frame(large, 1448)[1], large)]
    broken = np.frombuffer(gradient(700, 2), np.float32).copy()
    broken[500] = np.nan  # has no form there
    large = tcp_frame(message(broken.tobytes()), 1, port=new_port())
    wire = scaled.transmit(large, 1448)
    assert [len(packed) < len(one) for packed, one in zip(wire, cut(parse(large), 1448), strict=True)] == [True, False]  # type: ignore[arg-type]


def test_a_flow_that_does_not_begin_with_a_message_is_left_alone(faithful: PipeCard) -> None:
    before, port = faithful.counters(), new_port()
    stream = message(gradient(2000, 1))
    for one in frames(stream[52:], range(0, 8000, 1448), 52, port=port):
        assert faithful.transmit(one) == [one]
    after = faithful.counters()
    assert (after.left_alone - before.left_alone, after.compressed - before.compressed) == (1, 0)
    opening = tcp_frame(b"", 7000, port=port, flags=SYN | ACK)  # the next connection of these ports is another
    assert faithful.transmit(opening) == [opening]
    assert len(faithful.transmit(tcp_frame(stream[:1448], 7001, port=port))[0]) < 1000


def test_a_message_that_does_not_add_up_ends_the_following_but_not_what_came_before(faithful: PipeCard) -> None:
    port, good = new_port(), message(gradient(362, 1))
    bad = struct.pack("<6Q", 100, 1, 0, 0, 51, 0) + gradient(362, 2)
    first, second = tcp_frame(good, 1, port=port), tcp_frame(bad, 1 + len(good), port=port)
    third = tcp_frame(message(gradient(300, 3)), 1 + len(good + bad), port=port)
    assert len(faithful.transmit(first)[0]) < len(first)
    assert faithful.transmit(second) == [second] and faithful.transmit(third) == [third]
    assert len(faithful.transmit(first)[0]) < len(first)  # a retransmission


@pytest.mark.parametrize("v6", [False, True])
@given(n=st.integers(2, 1448), cuts=st.sampled_from([0, 64, 1448]), seed=st.integers(0, 9))
def test_a_packet_that_looks_like_a_cards_arrives_as_it_was(v6: bool, faithful: PipeCard, n: int, cuts: int, seed: int) -> None:
    part = (b"PN" + random.Random(seed).randbytes(62))[:64]
    payload = (part * 23)[:n] if seed % 3 else (b"PN" * 800)[:n]
    one = tcp_frame(payload, 5, port=new_port(), tos=COMPRESSED | 1, v6=v6, flags=ACK | PSH)
    card = frame.Card()
    wire = faithful.transmit(one, cuts)
    assert wire == card.transmit(one, cuts)
    assert all(len(packed) <= 1514 for packed in wire)
    host = [back for packed in wire for back in faithful.receive(packed)]
    assert payloads(host) == payload
    assert all((tcp := parse(back)) and tcp.tcp_fits and tcp.traffic_class == COMPRESSED | 1 for back in host)


@given(data=st.data(), v6=st.booleans(), seed=st.integers(0, 50))
def test_a_damaged_segment_never_reaches_the_host_as_a_good_one(
    data: st.DataObject, v6: bool, seed: int, faithful: PipeCard
) -> None:
    one = tcp_frame(message(gradient(200, seed)), 1, port=new_port(), v6=v6)
    (packed,) = faithful.transmit(one)
    (good,) = faithful.receive(packed)
    tcp = parse(packed)
    assert tcp is not None
    kind = data.draw(st.sampled_from(["bit", "burst", "cut", "swap", "checksum kept"]), "kind")
    damaged = bytearray(packed)
    # Ethernet's own checksum covers addresses, type and IPv6's class; TCP's and the card's cover what is behind them.
    at = data.draw(st.integers(tcp.tcp, len(packed) - 8), "at")
    if kind == "bit":
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "burst":
        damaged[at : at + 6] = data.draw(st.binary(min_size=6, max_size=6))
    elif kind == "cut":
        damaged = damaged[:at]
    elif kind == "swap":
        # TCP's sum does not see a swap: in front it makes another connection's packet, of the magic a host's own.
        at = max(tcp.payload + 2, at - at % 2)
        damaged[at : at + 4] = damaged[at + 2 : at + 4] + damaged[at : at + 2]
    else:  # a TCP checksum that fits: only the card's own finds it
        at = data.draw(st.integers(tcp.payload + 2, len(packed) - 1))
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
        damaged = bytearray(tcp.changed(bytes(damaged[tcp.payload :])))
    answer = faithful.receive(bytes(damaged))
    assert answer == frame.Card().receive(bytes(damaged))
    for back in answer:
        read = parse(back)
        assert back == good or read is None or not (read.tcp_fits and read.ip_fits)


@given(
    format=st.integers(0, 3),
    k=st.sampled_from([0, 1, 10, 14, 15, 16, 0x28, 0x2B, 255]),
    zero=st.sampled_from([0, 0, 0, 1]),
    restored=st.integers(0, 300) | st.just(65535),
    runs=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=4),
    agree=st.booleans(),
    rest=st.binary(max_size=120),
)
def test_a_segment_with_right_checksums_is_restored_or_refused_as_the_oracle_says(
    format: int, k: int, zero: int, restored: int, runs: list[tuple[int, int]], agree: bool, rest: bytes, faithful: PipeCard
) -> None:
    if agree:
        restored = len(rest) if format == frame.VERBATIM else sum(raw + 4 * values for raw, values in runs)
        runs = [] if format == frame.VERBATIM else runs
    head = b"PN" + struct.pack("<BBBBH", format, k, len(runs), zero, restored)
    rest = b"".join(struct.pack("<HH", *run) for run in runs) + rest
    packed = head + struct.pack("<I", frame.crc32c(head + rest)) + rest
    one = tcp_frame(packed, 1, port=new_port(), tos=COMPRESSED)
    assert faithful.receive(one) == frame.Card().receive(one)


def test_what_is_counted_adds_up() -> None:
    with PipeCard() as pipe:
        large = tcp_frame(message(gradient(3000, 1)), 1)
        wire = pipe.transmit(large, 1448)
        for packed in [*wire, wire[0][:-1] + b"\x55"]:
            pipe.receive(packed)
        pipe.transmit(large[:-4], 0)
        c = pipe.counters()
    assert (c.sent_frames, c.segments, c.compressed, c.flows, c.left_alone) == (2, 9, 9, 1, 0)
    assert (c.bytes_before, c.bytes_after) == (12048, len(payloads(wire)))
    assert (c.received_frames, c.restored, c.damaged, c.dropped) == (10, 9, 1, 0)
    assert (c.received_bytes, c.restored_bytes) == (len(payloads(wire)), 12048)


def test_a_gap_is_closed_by_what_was_missing() -> None:
    stream = b"".join(message(gradient(300, seed)) for seed in range(4))
    sent = frames(stream, [1000, 2000, 3000, 4000], 1)
    with PipeCard() as pipe:
        shrunk = [len(pipe.transmit(sent[i])[0]) < len(sent[i]) for i in (0, 2, 1, 2, 3, 4)]
        assert shrunk == [True, False, True, True, True, True]  # the second message's preamble is in segment 1
        assert (pipe.counters().gaps, pipe.counters().retransmitted, pipe.counters().left_alone) == (1, 1, 0)


ENGINE = r"""
#include <cstdint>
#include <cstring>
extern "C" int64_t paceline_engine_compress(const uint8_t* frame, size_t bytes, int head, int k, int format,
                                            uint8_t* out, size_t) {
    if (head != 1 || frame[12] != 8 || frame[15] != 0x28 || k != 9 || format != 0) return -1;
    std::memcpy(out, frame, 32);
    size_t at = 32;
    for (size_t i = 32; i < bytes; i += 4, at += 2) std::memcpy(out + at, frame + i + 2, 2);
    return int64_t(at);
}
extern "C" int64_t paceline_engine_decompress(const uint8_t* frame, size_t bytes, int, int, int, int values,
                                              uint8_t* out, size_t) {
    if (bytes != 32 + 2 * size_t(values) || frame[bytes - 1] == 0x7f) return -1;
    std::memcpy(out, frame, 32);
    std::memset(out + 32, 0, 4 * size_t(values));
    for (int i = 0; i < values; i++) std::memcpy(out + 34 + 4 * i, frame + 32 + 2 * i, 2);
    return 32 + 4 * values;
}
"""


def test_an_engine_takes_the_codecs_place(tmp_path: Path) -> None:
    if not shutil.which("g++"):
        pytest.skip("needs g++: apt-get install g++")
    (tmp_path / "engine.cpp").write_text(ENGINE)
    library = str(tmp_path / "engine.so")
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-o", library, str(tmp_path / "engine.cpp")], check=True, timeout=250)
    with PipeCard("--engine", library, k=9) as pipe:
        values = np.frombuffer(gradient(300, 1), np.uint32)
        (packed,) = pipe.transmit(tcp_frame(message(values.tobytes()), 1))
        assert len(payloads([packed])) == 12 + 4 + 48 + 600
        (host,) = pipe.receive(packed)
        assert np.array_equal(np.frombuffer(payloads([host])[48:], np.uint32), values & 0xFFFF0000)
        (packed,) = pipe.transmit(tcp_frame(message(np.full(300, 3e38, np.float32).tobytes()), 1249))
        assert len(payloads([packed])) == 12 + 4 + 48 + 600 and pipe.receive(packed) == [] and pipe.counters().damaged == 1
    bad = subprocess.run([str(program()), "--pipe", "--engine", "/none.so"], capture_output=True, text=True, timeout=200)
    assert bad.returncode == 2 and bad.stderr.startswith("_nic_card: /none.so") and len(bad.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("codec", "k"), [("inceptionn", 10), ("inceptionn", 15), ("inceptionn-scaled", 6), ("inceptionn-scaled", 14)]
)
def test_the_engines_verilog_is_the_codec_of_the_card_bit_for_bit(codec: str, k: int) -> None:
    """The same packets through two cards: one codes in C++, one in Verilator's model of the emitted Verilog."""
    try:
        engine = str(library())
    except UserError as error:
        pytest.skip(f"needs the engine's library: {error}")
    rng, sequence = np.random.default_rng(k), 1
    with PipeCard(codec=codec, k=k) as ours, PipeCard("--engine", engine, codec=codec, k=k) as verilog:
        for count in (16, 17, 100, 338, 349, 350):
            values = (rng.standard_normal(count) * 10 ** rng.uniform(-5, 1, count)).astype(np.float32)
            data = message(values.tobytes())
            frame, sequence = tcp_frame(data, sequence), sequence + len(data)
            packed = ours.transmit(frame)
            assert packed == verilog.transmit(frame)
            assert [ours.receive(one) for one in packed] == [verilog.receive(one) for one in packed]
        assert ours.counters().compressed == verilog.counters().compressed > 0
        assert verilog.counters().damaged == 0
