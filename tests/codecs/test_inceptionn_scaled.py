"""The scaled variant: against exact fractions, a bound that holds for any floats, and what it costs."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle_inceptionn as oracle
from each_row import each_row
from every_backend import decoded, encoded, labels
from paceline.codecs import ADD, SUBTRACT, PayloadError, decode, encode, get, max_payload_bytes
from paceline.errors import UserError

GOLDEN = json.loads((Path(__file__).parent / "golden" / "inceptionn-scaled.json").read_text())
BACKENDS = labels()
KS = st.integers(1, 14)
FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)
# Values of one block are near each other, or the smaller ones are all zero: an exponent, and a few below it.
TOGETHER = st.integers(-149, 127).flatmap(
    lambda top: st.lists(
        st.builds(
            lambda m, down, sign: sign * float(np.ldexp(np.float32(m), max(top - down, -149))),
            st.floats(1, 2, exclude_max=True, width=32),
            st.integers(0, 18),
            st.sampled_from([1, -1]),
        ),
        max_size=40,
    )
)


def codec(k: int):
    return get("inceptionn-scaled", bound=2.0**-k)


@lru_cache(maxsize=4)  # for all backends at once
def expected(data: bytes, k: int) -> tuple[bytes, list[Fraction]]:
    """The oracle's bytes and values, of which every error is within the bound."""
    x = np.frombuffer(data, np.float32)
    body, values = oracle.scaled_body(x.tolist(), k)
    for first in range(0, x.size, oracle.BLOCK):
        block, got = x[first : first + oracle.BLOCK], values[first : first + oracle.BLOCK]
        peak = Fraction(float(np.abs(block).max()))
        assert max(abs(Fraction(a) - b) for a, b in zip(block.tolist(), got, strict=True)) <= peak * Fraction(2) ** -k
    return body, values


def check(x: np.ndarray, k: int, backend: str) -> np.ndarray:
    """Bytes and values are the oracle's, and every error is within the bound. Returns the values."""
    body, values = expected(x.tobytes(), k)
    assert encoded(backend, codec(k), x) == body
    y = decoded(backend, codec(k), body, x.size)
    assert [Fraction(v) for v in y.tolist()] == values
    assert not np.signbit(y[y == 0]).any()
    return y


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_byte_codes_by_hand(backend):
    # Bound 2^-6. The largest magnitude is 1, so S = 2 and e = 1 (01 00); the unit is 2 / 64 = 1/32.
    #   value    1     -0.5   0.02   0.015   -0.046875   0.078125
    #   / unit   32    -16    0.64   0.48    -1.5        2.5          half to even: -2, 2
    #   tag      01    01     01     00      01          01           = 0515 -> 15 05
    #   payload  20    90     01             82          02           seven bytes
    body = bytes.fromhex("07000000 0100 1505 2090018202")
    x = np.array([1, -0.5, 0.02, 0.015, -0.046875, 0.078125], np.float32)
    assert encoded(backend, codec(6), x) == body
    assert decoded(backend, codec(6), body, 6).tolist() == [1, -0.5, 1 / 32, 0, -2 / 32, 2 / 32]


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_byte_codes_by_hand(backend):
    # Bound 2^-10, S = 2: units 2^-9 in one byte up to 127, 2^-14 in two.
    #   value        1.5            -0.2          0.25           127.5 / 512
    #   / 2^-9       768            -102.4        128            127.5, half to even 128
    #   tag          10             01            10             10               = a6 00
    #   payload      6000 -> 00 60  102 = e6      1000 -> 00 10  127.5 * 32 = 0ff0 -> f0 0f
    body = bytes.fromhex("09000000 0100 a600 0060 e6 0010 f00f")
    x = np.array([1.5, -0.2, 0.25, 127.5 / 512], np.float32)
    assert encoded(backend, codec(10), x) == body
    assert decoded(backend, codec(10), body, 4).tolist() == [1.5, -102 / 512, 0.25, 127.5 / 512]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("item", GOLDEN, ids=lambda item: item["name"])
def test_golden(item, backend):
    x = np.array([int(word, 16) for word in item["input"]], np.uint32).view(np.float32)
    c = get("inceptionn-scaled", **item["options"])
    payload = bytes.fromhex(item["payload"])
    assert encode(c, x).tobytes() == payload
    assert encoded(backend, c, x) == payload[32:]
    expected = np.array([int(word, 16) for word in item["decoded"]], np.uint32)
    assert decoded(backend, c, payload[32:], x.size).view(np.uint32).tolist() == expected.tolist()


@given(st.lists(FINITE, max_size=60) | TOGETHER, KS, st.sampled_from(BACKENDS))
def test_the_bound_holds_for_floats_of_any_size(values, k, backend):
    check(np.array(values, np.float32), k, backend)


@pytest.mark.everyday("6-reference", "6-native-avx2", "14-reference", "14-native-avx2")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("k", [1, 6, 7, 8, 14])
@each_row("top", [-149, -148, -140, -127, -126, -125, -100, -61, -60, -59, -1, 0, 1, 64, 112, 126, 127])
def test_the_bound_holds_at_every_magnitude(top, k, backend):
    rng = np.random.default_rng(top + 1000)
    mantissa = np.ldexp(np.float32(1) + rng.random(300).astype(np.float32).clip(0, 1 - 2**-23), top - rng.integers(0, 20, 300))
    x = np.concatenate([mantissa * rng.choice([-1, 1], 300), np.ldexp([1, 2 - 2**-23], top)]).astype(np.float32)
    assert np.isfinite(x).all() and x.any()
    check(x, k, backend)


@pytest.mark.everyday(
    *(f"{count}-{backend}" for backend in ("reference", "native-avx2") for count in (0, 1, 1025, 16385)),
    *("16385-native-baseline", "16385-native-avx512"),
)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", [0, 1, 8, 1023, 1024, 1025, 16384, 16385, 20_001])
def test_sizes_around_blocks_and_chunks_with_blocks_of_zeros_between(count, backend):
    rng = np.random.default_rng(count)
    scale = rng.choice([0, 1e-30, 1e-3, 1e20], -(-count // 512)).repeat(512)[:count]
    x = (rng.standard_t(3, count) * scale).astype(np.float32)
    for k in (6, 9):
        y = check(x, k, backend)
        body, base = encoded(backend, codec(k), x), x[::-1].copy()
        assert np.array_equal(decoded(backend, codec(k), body, count, ADD, base), base + y)
        assert np.array_equal(decoded(backend, codec(k), body, count, SUBTRACT, base), base - y)


def test_gradients_a_thousand_times_smaller_take_the_same_bursts():
    x = np.random.default_rng(0).standard_normal(40_000).astype(np.float32)
    one = encode(codec(8), x)
    for power in (-100, -20, 20, 100):
        other = encode(codec(8), np.ldexp(x, power))
        assert np.array_equal(one[32 + 12 + 80 :], other[32 + 12 + 80 :])
        assert np.array_equal(decode(other), np.ldexp(decode(one), power))


def test_a_block_of_zeros_costs_its_exponent_only():
    x = np.zeros(1 << 20, np.float32)
    x[5] = -0.0
    assert encode(codec(6), x).size == 32 + 4 * 64 + 2 * 1024 == 32 + codec(6).body_range(x.size)[0]
    assert not decode(encode(codec(6), x)).view(np.uint32).any()
    x[::1024] = 1  # one value a block: sixteen times smaller, one byte a block, and the exponents
    assert encode(codec(6), x).size == 32 + 4 * 64 + 2 * 1024 + x.size // 4 + 1024


@pytest.mark.parametrize(("k", "bits"), [(6, 10), (7, 18), (14, 18)])
def test_the_most_that_it_takes(k, bits):
    x = np.full(1 << 15, np.float32(1 - 2**-24))
    size = encode(codec(k), x).size
    assert size == max_payload_bytes(codec(k), x.size) == 32 + 4 * 2 + 2 * 32 + bits * x.size // 8


@pytest.mark.parametrize("backend", BACKENDS)
@each_row("bad", [np.nan, np.inf, -np.inf])
@each_row("at", [0, 1030, 17_000, 17_004])
def test_what_is_not_finite_is_refused(bad, at, backend):
    x = np.ones(17_005, np.float32)
    x[at] = bad
    with pytest.raises(ValueError, match="send this tensor dense"):
        encoded(backend, codec(6), x)


@pytest.mark.parametrize("bound", [2.0**-15, 1.0, 0.1])
def test_a_bound_out_of_range_is_refused(bound):
    with pytest.raises(UserError, match="nearest legal"):
        get("inceptionn-scaled", bound=bound)


def test_impossible_parameters_are_refused():
    payload = encode(codec(6), np.ones(3, np.float32))
    for at, value in ((16, 0), (16, 15), (23, 1)):
        changed = payload.copy()
        changed[at] = value
        with pytest.raises(PayloadError, match="parameters"):
            decode(changed)
