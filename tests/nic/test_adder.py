"""The adder against sums of integers: random frames, workers and stalls."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("amaranth", reason="needs amaranth: pip install 'paceline[nic]'")

from amaranth.sim import Simulator

from nic.ternary_frames import LENGTHS, header, summed
from paceline.nic.engine.adder import TernaryAdder

WORKERS = (1, 2, 3, 5, 16, 31, 32, 63)


def add(pairs: Sequence[tuple[bytes, bytes, dict[str, int]]], stall: float, seed: int) -> list[tuple[bytes, bool]]:
    """Each pair's frame and error. A second frame that is empty is not sent."""
    chance, adder, done = random.Random(seed), TernaryAdder(), []

    def feeder(which: int) -> Any:
        stream = adder.beats_1 if which == 0 else adder.beats_2

        async def feed(ctx: Any) -> None:
            for pair in pairs:
                for name, value in pair[2].items() if which == 0 else ():
                    ctx.set(getattr(adder, name), value)
                frame = pair[which]
                for at in range(0, len(frame), 32):
                    octets = frame[at : at + 32]
                    while chance.random() < stall:
                        await ctx.tick()
                    beat = {"bytes": len(octets), "first": at == 0, "last": at + 32 >= len(frame)}
                    ctx.set(stream.payload, {"data": int.from_bytes(octets.ljust(32, b"\xa5"), "little"), **beat})
                    ctx.set(stream.valid, 1)
                    await ctx.tick().until(stream.ready)
                    ctx.set(stream.valid, 0)

        return feed

    async def collect(ctx: Any) -> None:
        frame, out = b"", adder.beats_out
        for _ in range(20_000):
            if len(done) == len(pairs):
                return
            ctx.set(out.ready, chance.random() >= stall)
            _, _, valid, ready, beat, error = await ctx.tick().sample(out.valid, out.ready, out.payload, adder.error)
            if valid and ready:
                assert beat.first == (not frame) and (beat.bytes == 32 or beat.last)
                frame += beat.data.to_bytes(32, "little")[: beat.bytes]
                if beat.last:
                    done.append((frame, bool(error)))
                    frame = b""
        raise AssertionError(f"{len(done)} of {len(pairs)} frames came out")

    simulator = Simulator(adder)
    simulator.add_clock(1e-8)
    simulator.add_testbench(feeder(0), background=True)
    simulator.add_testbench(feeder(1), background=True)
    simulator.add_testbench(collect)
    simulator.run()
    return done


def addend(rng: np.random.Generator, chance: random.Random, count: int, most: int) -> tuple[np.ndarray, bytes, int, bool]:
    """Sums of so many workers, their body, the workers, and whether the body is a ``ternary``."""
    workers = chance.choice([n for n in WORKERS if n <= most])
    ternary = workers == 1 and chance.random() < 0.6
    sums = rng.integers(-workers, workers + 1, count)
    return sums, summed(sums, workers, ternary), workers, ternary


@pytest.mark.long
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_sums_are_exact(seed: int) -> None:
    chance, rng = random.Random(seed), np.random.default_rng(seed)
    pairs, expected = [], []
    for _ in range(8):
        count, heads, marked = chance.choice(LENGTHS), chance.randint(1, 3), chance.random() < 0.8
        sums_1, body_1, n1, ternary_1 = addend(rng, chance, count, 63)
        sums_2, body_2, n2, ternary_2 = addend(rng, chance, count, 64 - n1)
        first, second = header(heads, marked, chance), header(heads, chance.random() < 0.5, chance)
        registers = {"head": heads, "values": count, "workers_1": n1, "workers_2": n2}
        registers |= {"ternary_1": int(ternary_1), "ternary_2": int(ternary_2)}
        pairs.append((first + body_1, second + body_2 if marked else b"", registers))
        expected.append((first + (summed(sums_1 + sums_2, n1 + n2) if marked else body_1), False))
    assert add(pairs, chance.choice((0, 0.3)), seed) == expected


@pytest.mark.everyday("False-code-1")
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("damage", ["short", "long", "code"])
@pytest.mark.parametrize("ternary", [False, True])
def test_a_damaged_body_keeps_its_length_and_the_next_pair(which: int, damage: str, ternary: bool) -> None:
    chance, heads, count = random.Random(which), 2, 100
    workers = 1 if ternary else 5
    sums = np.full(count, workers)
    right = summed(sums, workers, ternary)
    wrong = bytearray(right)
    if damage == "short":
        del wrong[-9:]
    elif damage == "long":
        wrong += b"\0"
    else:  # plane 0 of the first block: (0, 1) of a ternary; 11 instead of 10 of 5 workers
        wrong[0] ^= 1
    registers = {"head": heads, "values": count, "workers_1": workers, "workers_2": workers}
    registers |= {"ternary_1": int(ternary), "ternary_2": int(ternary)}
    if damage == "code" and ternary:
        wrong[8] |= 1
    pairs = []
    for damaged in (True, False):
        bodies = [right, right]
        if damaged:
            bodies[which] = bytes(wrong)
        pairs.append((header(heads, True, chance) + bodies[0], header(heads, True, chance) + bodies[1], registers))
    (first, error_1), (second, error_2) = add(pairs, 0.2, 1)
    assert error_1 and len(first) == len(second) and not error_2
    assert second == pairs[1][0][:64] + summed(2 * sums, 2 * workers)
