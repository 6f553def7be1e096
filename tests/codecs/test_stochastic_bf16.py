"""Stochastic rounding to bfloat16: the same bits from C++, NumPy and torch, one of two neighbours, nothing lost on average."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracle
from paceline.codecs import key, native
from paceline.codecs.stochastic_bf16 import reference, round_tensor, round_to, with_torch

STARTS = st.sampled_from([0, 3, 2**32 - 100, 2**32 - 1, 5 * 2**32 - 17, 2**45 + 9])
FINITE = st.floats(-(2.0**100), 2.0**100, width=32)


def rounded(values: np.ndarray, start: int = 0, seed: int = 1) -> np.ndarray:
    out = np.zeros(values.size, np.uint16)
    round_to(out, values, key(seed, 2, 3), start)
    return out


def floats(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@given(st.lists(FINITE, min_size=1, max_size=70), STARTS, st.integers(0, 2**40))
def test_a_number_becomes_what_its_draw_says(given_: list[float], start: int, seed: int) -> None:
    """By hand, of one number after the other: up where the lower half and the draw's upper 16 of 24 bits reach 2^16."""
    values = np.array(given_, np.float32)
    bits = values.view(np.uint32).astype(int)
    draws = [oracle.draw(seed, 2, 3, start + k) >> 8 for k in range(values.size)]
    by_hand = [(b >> 16) + ((b & 0xFFFF) + d >= 1 << 16) for b, d in zip(bits, draws, strict=True)]
    assert rounded(values, start, seed).tolist() == by_hand


@pytest.mark.parametrize("start", [0, 2**32 - 1000, 5 * 2**32 - 17])
@pytest.mark.parametrize("count", [1, 7, 64, 100_003])
def test_every_implementation_has_the_same_bits(count: int, start: int) -> None:
    values = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    wanted, by_torch = np.zeros(count, np.uint16), torch.zeros(count, dtype=torch.bfloat16)
    reference(wanted, values, key(1, 2, 3), start)
    with_torch(by_torch, torch.from_numpy(values.copy()), key(1, 2, 3), start)
    assert np.array_equal(by_torch.view(torch.uint16).numpy(), wanted)
    assert np.array_equal(rounded(values, start), wanted)
    own = torch.zeros(count, dtype=torch.bfloat16)
    round_tensor(own, torch.from_numpy(values), key(1, 2, 3), start)
    assert torch.equal(own.view(torch.int16), by_torch.view(torch.int16))
    assert native.available()


def test_what_bfloat16_holds_stays_and_the_rest_goes_to_a_neighbour() -> None:
    exact = np.array([0.0, -0.0, 1.0, -1.5, 2.0**-126, 2.0**100], np.float32)
    assert np.array_equal(floats(rounded(exact)).view(np.uint32), exact.view(np.uint32))
    values = np.random.default_rng(1).standard_normal(50_000).astype(np.float32)
    found = floats(rounded(values))
    assert (np.abs(found - values) < 2.0**-7 * np.abs(values)).all()  # less than one unit of the last of eight places
    assert 0.45 < np.mean(np.abs(found) > np.abs(values)) < 0.55


def test_small_addends_are_not_lost() -> None:
    """A thousandth added 8,000 times to 1: to nearest it stays 1, since half a unit of its last place is 1/256."""
    by_chance, nearest = np.ones(500, np.float32), torch.ones(1, dtype=torch.bfloat16)
    for step in range(8000):
        by_chance = floats(rounded(by_chance + np.float32(0.001), start=500 * step))
        nearest = (nearest.float() + 0.001).bfloat16()
    assert float(nearest) == 1.0
    assert abs(float(by_chance.mean()) - 9.0) < 0.05
