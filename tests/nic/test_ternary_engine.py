"""The ternary engine against the codec: random frames, settings and stalls."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("amaranth", reason="needs amaranth: pip install 'paceline[nic]'")

from engine_simulation import Frame, simulate
from nic.ternary_frames import LENGTHS, decoded, draw_registers, encoded, header, word
from paceline.codecs import counter
from paceline.nic.engine.ternary import TernaryDecoder, TernaryEncoder

SEEDS = st.integers(0, 1 << 32)
STARTS = (0, 5, (1 << 32) - 50, (7 << 32) - 3, 1 << 40)


def values(rng: np.random.Generator, count: int, scale: np.float32) -> np.ndarray:
    """Of all sizes: some beyond the scaler, some near ties of the product, subnormal numbers, zeros of both signs."""
    x = rng.uniform(-1.2, 1.2, count) * float(scale) * 2.0 ** -rng.integers(0, 27, count)
    x = np.where(rng.random(count) < 0.1, rng.integers(0, 1 << 23, count) * 2.0**-149, x)
    return np.where(rng.random(count) < 0.05, np.float32(-0.0), x).astype(np.float32)


def stalls(random: random.Random) -> list[int]:
    """None, or one in three cycles."""
    return [] if random.random() < 0.3 else [random.choice((0, 0, 1, 3)) for _ in range(2000)]


@pytest.mark.long
@settings(max_examples=8, deadline=None)
@given(seed=SEEDS)
def test_encoder_and_decoder_agree_with_the_codec(seed: int) -> None:
    chance, rng = random.Random(seed), np.random.default_rng(seed)
    frames, bodies, restored = [], [], []
    for step in range(8):
        count, heads, marked = chance.choice(LENGTHS), chance.randint(1, 3), chance.random() < 0.8
        scale = np.float32(2.0 ** chance.uniform(-103, 127)) if chance.random() < 0.5 else np.float32(chance.uniform(0.5, 2))
        start, key, head = chance.choice(STARTS), counter.key(seed, step), header(heads, marked, chance)
        x = values(rng, count, scale)
        frames.append(Frame(head + x.tobytes(), {"head": heads, **draw_registers(scale, key, start)}))
        body = encoded(x, scale, key, start) if marked else x.tobytes()
        bodies.append(Frame(head + body, {"head": heads, "scale": word(scale), "values": count}))
        restored.append(head + (decoded(body, count, scale) if marked else body))
    done = simulate(TernaryEncoder(), frames, stalls(chance), stalls(chance))
    assert done.frames == tuple(frame.content for frame in bodies) and not any(done.errors)
    back = simulate(TernaryDecoder(), bodies, stalls(chance), stalls(chance))
    assert back.frames == tuple(restored) and not any(back.errors)


@pytest.mark.long
@settings(max_examples=6, deadline=None)
@given(seed=SEEDS)
def test_a_damaged_body_keeps_its_length_and_the_next_frame(seed: int) -> None:
    chance, scale = random.Random(seed), np.float32(1.5)
    frames, sizes, damaged = [], [], []
    for _ in range(8):
        count, heads = chance.choice(LENGTHS), chance.randint(1, 3)
        negative = np.array([chance.random() < 0.5 for _ in range(count)], np.bool_)
        right = encoded(np.where(negative, -scale, scale).astype(np.float32), scale, counter.key(seed, 1), 0)
        body = bytearray(right)
        kind = chance.choice(("none", "short", "long", "code"))
        if kind == "short" and body:
            del body[-chance.randint(1, len(body)) :]
        elif kind == "long":
            body += chance.randbytes(chance.randint(1, 70))
        elif kind == "code" and body:
            planes = min(count // 8, 8) if count >= 8 else 1  # of the first block
            body[0], body[planes if count >= 64 else -(-count // 8)] = 0, 0xFF
        frames.append(Frame(header(heads, True, chance) + bytes(body), {"head": heads, "scale": word(scale), "values": count}))
        sizes.append(32 * heads + 4 * count)
        damaged.append(bytes(body) != right)
    done = simulate(TernaryDecoder(), frames, stalls(chance), stalls(chance))
    assert [len(frame) for frame in done.frames] == sizes
    assert list(done.errors) == damaged
    for frame, got, wrong in zip(frames, done.frames, damaged, strict=True):
        if not wrong:
            count = frame.registers["values"]
            assert got[32 * frame.registers["head"] :] == decoded(frame.content[32 * frame.registers["head"] :], count, scale)


def test_a_header_that_ends_early_passes_with_an_error() -> None:
    chance = random.Random(0)
    early = Frame(header(1, True, chance), {"head": 3, "scale": 0, "values": 5})
    good = Frame(header(1, True, chance) + b"\1\0", {"head": 1, "scale": word(np.float32(2)), "values": 1})
    done = simulate(TernaryDecoder(), [early, good])
    assert done.frames == (early.content, good.content[:32] + np.float32(2).tobytes()) and done.errors == (True, False)


@pytest.mark.everyday("inf")
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_the_encoder_reports_what_the_codec_refuses(bad: float) -> None:
    chance, scale = random.Random(1), np.float32(1)
    frames = []
    for wrong in (False, True, False):
        x = np.full(70, bad if wrong else 0.5, np.float32)
        frames.append(Frame(header(1, True, chance) + x.tobytes(), {"head": 1, **draw_registers(scale, counter.key(1, 1), 0)}))
    assert simulate(TernaryEncoder(), frames).errors == (False, True, False)


def test_one_beat_a_cycle() -> None:
    x = np.full(2048, 0.5, np.float32)
    registers = {"head": 1, **draw_registers(np.float32(1), counter.key(1, 1), 0)}
    done = simulate(TernaryEncoder(), [Frame(header(1, True, random.Random(2)) + x.tobytes(), registers)])
    assert done.cycles <= 257 + 12  # the beats and the pipeline
