"""The engines in Amaranth's simulator, against the codec: bits, stalls, frames of every kind, and damage."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="needs amaranth: pip install 'paceline[nic]'")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_simulation import Frame, simulate
from paceline.nic.bodies import decoded, encoded, header
from paceline.nic.engine.compressor import Compressor
from paceline.nic.engine.decompressor import Decompressor
from paceline.nic.verify import damaged_frame, golden_frames

QUICK = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
PAYLOAD = 1448 // 4
"""Values of a TCP segment at an MTU of 1,500."""


def frame(values, k, scaled, head=2, marked=True, ipv6=False, tail=b""):
    """What goes into the compressor, and into the decompressor, with what must come out of each; by the reference backend."""
    front = header(head, marked, ipv6)
    plain = front + values.tobytes() + tail
    registers = {"head": head, "k": k, "scaled": int(scaled)}
    packed, back = plain, plain
    if marked:
        packed = front + encoded(values, k, scaled, "reference")
        back = front + decoded(values, k, scaled, "reference").tobytes()
    return Frame(plain, registers), Frame(packed, registers | {"values": values.size}), packed, back


def agree(rows, gaps=(), pauses=()):
    """Both engines give what the codec gives, without an error."""
    packed = simulate(Compressor(), [row[0] for row in rows], gaps, pauses)
    assert list(packed.frames) == [row[2] for row in rows]
    assert not any(packed.errors)
    restored = simulate(Decompressor(), [row[1] for row in rows], gaps, pauses)
    assert list(restored.frames) == [row[3] for row in rows]
    assert not any(restored.errors)
    return packed, restored


def spread(rng, count):
    """Magnitudes over many powers of two, with zeros."""
    values = rng.standard_normal(count) * np.exp2(rng.uniform(-18, 2, count))
    return np.where(rng.random(count) < 0.2, 0, values).astype(np.float32)


stalls = st.lists(st.integers(0, 3), max_size=200)
frames = st.tuples(st.integers(0, 40), st.booleans(), st.integers(1, 14), st.integers(1, 4), st.integers(0, 4), st.booleans())


@pytest.mark.long
@QUICK
@given(st.lists(frames, min_size=1, max_size=6), stalls, stalls, st.integers(0, 2**32 - 1))
def test_frames_of_any_kind_with_stalls_on_both_sides(kinds, gaps, pauses, seed):
    rng = np.random.default_rng(seed)
    rows = []
    for count, scaled, k, head, unmarked, ipv6 in kinds:
        tail = rng.bytes(int(rng.integers(32))) if unmarked == 0 else b""
        rows.append(frame(spread(rng, count), k, scaled, head, unmarked != 0, ipv6, tail))
    agree(rows, gaps, pauses)


@pytest.mark.long
def test_every_length_up_to_forty_and_a_segment():
    rng = np.random.default_rng(1)
    agree([frame(spread(rng, n), 1 + n % 14, n % 3 == 0) for n in [*range(1, 41), PAYLOAD]])


def test_golden_vectors():
    rows = []
    for plain, registers, packed, back, _ in golden_frames():
        named = {"head": registers.head, "k": registers.k, "scaled": int(registers.scaled)}
        rows.append((Frame(plain, named), Frame(packed, named | {"values": registers.values}), packed, back))
    assert len(rows) == 18
    agree(rows)


@pytest.mark.full
def test_a_sample_of_tag_vectors():
    rng = np.random.default_rng(2)
    tags = rng.integers(0, 4, (64, 8))
    values = np.array([1e-5, 5e-3, 0.2, 3.0])[tags] * rng.choice([-1, 1], tags.shape) * rng.uniform(0.9, 1.1, tags.shape)
    row = frame(values.astype(np.float32).reshape(-1), 10, False)
    agree([row])
    body, at = row[2][64:], 0
    for own in tags:  # the codec wrote the vectors that were meant
        assert int.from_bytes(body[at : at + 2], "little") == sum(int(tag) << 2 * lane for lane, tag in enumerate(own))
        at += 2 + sum((0, 1, 2, 4)[tag] for tag in own)
    assert at == len(body)


@pytest.mark.long
def test_a_scale_for_each_block():
    rng = np.random.default_rng(3)
    values = np.concatenate([spread(rng, 1024), np.zeros(1024, np.float32), spread(rng, 30) * np.float32(1e-30)])
    packed, _ = agree([frame(values, 10, True), frame(spread(rng, 9), 6, False)])
    assert packed.frames[0] != packed.frames[1]


@pytest.mark.long
def test_what_is_not_marked_passes_at_every_length_and_type_of_service():
    rng = np.random.default_rng(4)
    rows = []
    for length in (1, 15, 31, 32, 33, 64, 100):
        content = bytearray(rng.bytes(length))
        content[12:16] = b"\x08\x00\x45\x24"[: len(content[12:16])]
        rows.append(Frame(bytes(content), {"head": 1, "k": 4, "scaled": 0}))
    for engine in (Compressor(), Decompressor()):
        assert simulate(engine, rows).frames == tuple(row.content for row in rows)


def test_congestion_bits_do_not_unmark_a_frame():
    fronts = [header(1)[:15] + bytes([service]) + header(1)[16:] for service in (0x28, 0x29, 0x2A, 0x2B)]
    got = simulate(Compressor(), [Frame(front + bytes(64), {"head": 1, "k": 4, "scaled": 0}) for front in fronts])
    assert got.frames == tuple(front + bytes(4) for front in fronts)


def test_infinity_is_an_error_of_the_scaled_format_and_the_next_frame_is_whole():
    rng = np.random.default_rng(5)
    bad = np.array([1, np.inf, 2], np.float32)
    good = frame(spread(rng, 20), 6, True)
    registers = {"head": 2, "k": 6, "scaled": 1}
    got = simulate(Compressor(), [Frame(header(2) + bad.tobytes(), registers), good[0]])
    assert got.errors == (True, False)
    assert got.frames[1] == good[2]


@pytest.mark.long
def test_a_damaged_frame_keeps_its_length_and_leaves_the_next_one_whole():
    rng, damaged = np.random.default_rng(6), np.random.default_rng(7)
    rows, wanted = [], []
    while len(rows) < 60:
        settings_, packed, back, _, refused = damaged_frame(damaged)
        if settings_.values > 60:
            continue
        registers = {"head": 1, "k": settings_.k, "scaled": int(settings_.scaled), "values": settings_.values}
        whole = frame(spread(rng, 11), 8, bool(len(rows) % 4))
        rows += [Frame(packed, registers), whole[1]]
        wanted += [(refused, back), (False, whole[3])]
    got = simulate(Decompressor(), rows, gaps=rng.integers(0, 2, 500).tolist())
    assert [error for error, _ in wanted] == list(got.errors)
    assert {error for error, _ in wanted} == {True, False}
    for (refused, back), content in zip(wanted, got.frames, strict=True):
        assert len(content) == len(back)
        assert refused or content == back


@pytest.mark.long
def test_one_beat_a_cycle_in_where_nothing_expands():
    rng = np.random.default_rng(8)
    rows = [frame(rng.standard_normal(PAYLOAD).astype(np.float32) * np.float32(0.01), 10, False) for _ in range(8)]
    packed, restored = agree(rows)
    sent = [
        cycle for cycle, pair in enumerate(zip(packed.trace["in.valid"], packed.trace["in.ready"], strict=True)) if all(pair)
    ]
    assert len(sent) == sent[-1] - sent[0] + 1  # no stall at the input
    gaps = np.diff(restored.beats)
    assert gaps.min() == 1 and np.median(gaps) == 1


@pytest.mark.long
def test_one_beat_a_cycle_in_where_bursts_of_30_and_34_bytes_alternate():
    values = np.full((64, 8), 3.0, np.float32)
    values[::2, 0] = 0
    packed, _ = agree([frame(values.ravel(), 10, False)] * 2)
    taken = [
        cycle for cycle, pair in enumerate(zip(packed.trace["in.valid"], packed.trace["in.ready"], strict=True)) if all(pair)
    ]
    assert len(taken) == taken[-1] - taken[0] + 1


@pytest.mark.long
def test_the_output_is_full_where_values_expand():
    packed, _ = agree([frame(np.full(2048, 3.0, np.float32), 10, False)])
    beats = 2 + 256 * 34 // 32  # of 34 bytes a burst
    assert len(packed.beats) == beats
    assert packed.beats[-1] - packed.beats[0] + 1 == beats
