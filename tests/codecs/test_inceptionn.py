"""INCEPTIONN to the bit: against algorithms 2 and 3 written out a float at a time, by hand, and trap by trap."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle_inceptionn as oracle
from every_backend import decoded, encoded, labels
from paceline.codecs import ADD, SUBTRACT, PayloadError, decode, encode, get, max_payload_bytes, set_threads
from paceline.codecs.reference.inceptionn import tag_shares
from paceline.errors import UserError

GOLDEN = json.loads((Path(__file__).parent / "golden" / "inceptionn.json").read_text())
BACKENDS = labels()
WORDS = st.integers(0, 2**32 - 1)
# Bits whose exponent is near the thresholds far more often than one in 256.
NEAR = st.builds(lambda s, e, m: s << 31 | e << 23 | m, st.integers(0, 1), st.integers(110, 128), st.integers(0, 2**23 - 1))
KS = st.integers(1, 15)


def codec(k: int):
    return get("inceptionn", bound=2.0**-k)


def floats(bits) -> np.ndarray:
    return np.array(bits, np.uint32).view(np.float32)


def round_trip(values, bound: float) -> np.ndarray:
    c = get("inceptionn", bound=bound)
    return decode(encode(c, np.array(values, np.float32)))


def normal(sigma: float, count: int = 1 << 17) -> np.ndarray:
    return (np.random.default_rng(4).standard_normal(count) * sigma).astype(np.float32)


def kept(x: np.ndarray, y: np.ndarray) -> float:
    """The share of the energy that is not lost."""
    return 1 - float(np.sum((x - y).astype(np.float64) ** 2) / np.sum(x.astype(np.float64) ** 2))


@lru_cache(maxsize=4)  # for all backends at once
def expected(data: bytes, k: int) -> tuple[bytes, list[int]]:
    """The body of fp32 numbers, and the bits that it decodes to, by the oracle."""
    bits = np.frombuffer(data, np.uint32).tolist()
    return oracle.body(bits, k), [oracle.decompress(*oracle.compress(b, k)) for b in bits]


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_burst_by_hand(backend):
    # Bound 2^-10: EB 117, two bytes from exponent 117 + 5 = 122, that is from 2^-5.
    #
    # lane  value     exponent                                            tag  payload
    #   0    1.0      127: whole                                          11   00 00 80 3f
    #   1   -0.75     126, S = c00000 >> 1 = 600000, S[22:8] = 6000        10   e000 -> 00 e0
    #   2    2^-5     122, S = 800000 >> 5 = 040000, S[22:8] = 0400        10   0400 -> 00 04
    #   3    0.03     121, 0.03 * 128 = 3.84                               01   03
    #   4   -0.01     120, 0.01 * 128 = 1.28                               01   81
    #   5    0.005    119, 0.005 * 128 = 0.64: nothing is left             01   00
    #   6    0.0009   116 < 117                                            00
    #   7   -0.001    117, nothing is left but the sign                    01   80
    #
    # Tags, lane 7 first: 01 00 01 01 01 10 10 11 = 456b -> 6b 45. Fourteen bytes, so the directory says 0e.
    body = bytes.fromhex("0e000000 6b45 0000803f 00e0 0004 03 81 00 80")
    x = np.array([1, -0.75, 2**-5, 0.03, -0.01, 0.005, 0.0009, -0.001], np.float32)
    assert encoded(backend, codec(10), x) == body
    expected = np.array([1, -0.75, 2**-5, 3 / 128, -1 / 128, 0, 0, -0.0], np.float32)
    assert decoded(backend, codec(10), body, 8).tobytes() == expected.tobytes()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("item", GOLDEN, ids=lambda item: item["name"])
def test_golden(item, backend):
    x = floats([int(word, 16) for word in item["input"]])
    c = get("inceptionn", **item["options"])
    payload = bytes.fromhex(item["payload"])
    assert encode(c, x).tobytes() == payload
    assert encoded(backend, c, x) == payload[32:]
    expected = floats([int(word, 16) for word in item["decoded"]])
    assert decoded(backend, c, payload[32:], x.size).tobytes() == expected.tobytes()
    assert payload[32:] == oracle.body(x.view(np.uint32).tolist(), c.k)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("k", [6, 8, 10, 1, 2, 7, 15])
def test_every_exponent_is_compressed_as_the_algorithms_say(k, backend):
    rng = np.random.default_rng(k)
    mantissas = np.concatenate([[0, 1, 0x7FFFFF, 0x400000], rng.integers(0, 1 << 23, 28)])
    bits = (np.arange(512)[:, None] << 23 | mantissas).astype(np.uint32).reshape(-1)
    rng.shuffle(bits)
    body = encoded(backend, codec(k), bits.view(np.float32))
    wanted, values = expected(bits.tobytes(), k)
    assert body == wanted
    assert decoded(backend, codec(k), body, bits.size).view(np.uint32).tolist() == values


@given(st.lists(NEAR | WORDS, max_size=90), KS, st.sampled_from(BACKENDS))
def test_any_floats_at_any_bound(bits, k, backend):
    body = encoded(backend, codec(k), floats(bits))
    assert body == oracle.body(bits, k)
    values = decoded(backend, codec(k), body, len(bits)).view(np.uint32)
    assert values.tolist() == [oracle.decompress(*oracle.compress(b, k)) for b in bits]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 16383, 16384, 16385, 50_001])
def test_sizes_around_bursts_and_chunks(count, backend):
    x = normal(0.3, count)
    body = encoded(backend, codec(8), x)
    wanted, words = expected(x.tobytes(), 8)
    assert body == wanted
    values = decoded(backend, codec(8), body, count)
    assert values.view(np.uint32).tolist() == words
    base = normal(1.0, count)[::-1]
    assert np.array_equal(decoded(backend, codec(8), body, count, ADD, base), base + values)
    assert np.array_equal(decoded(backend, codec(8), body, count, SUBTRACT, base), base - values)


# The six traps of the published description, and what was decided.


def test_trap_1_a_magnitude_of_zero_is_zero_and_not_one():
    # Half of 2^-7 is above a bound of 2^-10, takes one byte, and its seven magnitude bits are all zero.
    assert oracle.compress(oracle.bits_of(2.0**-8), 10) == (oracle.BYTE, 0)
    assert round_trip([2.0**-8, -(2.0**-8)], 2**-10).view(np.uint32).tolist() == [0, 1 << 31]


@pytest.mark.parametrize(("k", "worst"), [(10, 2.0**-7), (8, 2.0**-7), (7, 2.0**-7), (6, 2.0**-6)])
def test_trap_2_the_error_reaches_two_to_the_minus_7_below_that_bound(k, worst):
    below = np.nextafter(np.float32(worst), np.float32(0))
    error = float(below) - float(round_trip([below], 2.0**-k)[0])
    assert worst * (1 - 2**-15) < error < worst
    x = np.random.default_rng(1).uniform(-1.5, 1.5, 100_000).astype(np.float32)
    assert np.abs(x - round_trip(x, 2.0**-k)).max() < worst


def test_trap_3_small_gradients_are_lost_here_and_kept_by_the_scaled_codec():
    tiny, small = normal(1e-3), normal(0.01)
    for bound in (2**-10, 2**-8, 2**-6):
        assert not round_trip(tiny, bound).any()
    shares = [tag_shares(tiny), *(tag_shares(small, b) for b in (2**-10, 2**-8, 2**-6))]
    assert shares[0].bits2 == pytest.approx(0.67, abs=0.01)
    assert [s.ratio for s in shares[1:]] == [pytest.approx(r, abs=0.05) for r in (3.4, 4.2, 10.9)]
    energies = [kept(small, round_trip(small, b)) for b in (2**-10, 2**-8, 2**-6)]
    assert energies == [pytest.approx(e, abs=0.01) for e in (0.83, 0.83, 0.47)]
    scaled = get("inceptionn-scaled")
    for x in (tiny, normal(1e-6), small):
        assert kept(x, decode(encode(scaled, x))) > 0.99


def test_trap_4_no_distribution_has_the_published_shares_of_alexnet():
    # Table III at 2^-8 gives 82.5 % zeros, so 17.5 % of AlexNet's values are 2^-8 or more. At 2^-10 it gives 21.1 % in two
    # bytes, that is 2^-5 or more: more values above the larger threshold. The codec cannot do that, whatever the values.
    x = np.concatenate([normal(s, 1 << 14) for s in (1e-4, 1e-3, 1e-2, 1e-1)])
    at8, at10 = tag_shares(x, 2**-8), tag_shares(x, 2**-10)
    assert at10.bits18 <= 1 - at8.bits2


@pytest.mark.parametrize(("k", "half"), [(10, -5), (8, -4), (6, -3), (15, -7), (7, -3), (1, 0)])
def test_trap_5_two_bytes_from_the_midpoint_rounded_up(k, half):
    # The authors' hardware has 112 / 120 / 127, that is 2^-15 with two bytes from 2^-7; at (1, 0) nothing takes two bytes.
    at = np.float32(2.0**half)
    below = np.nextafter(at, np.float32(0))
    tags = get("inceptionn", bound=2.0**-k).tags(np.array([at, below], np.float32))
    assert tags.tolist() == [2 if half else 3, 1]


def test_trap_5_every_one_byte_code_of_two_to_the_minus_15_is_zero():
    x = np.linspace(2**-15, 2**-7, 5000, endpoint=False, dtype=np.float32)
    assert (get("inceptionn", bound=2**-15).tags(x) == 1).all()
    assert not round_trip(x, 2**-15).any()


@pytest.mark.parametrize(
    ("bound", "nearest"),
    [(2e-10, 15), (1e-3, 10), (0.01, 7), (0.3, 2), (1.0, 1), (0.0, 15), (-0.25, 15), (2.0**-16, 15), (np.nan, 1), (np.inf, 1)],
)
def test_trap_6_a_bound_is_a_power_of_two_and_not_a_decimal(bound, nearest):
    with pytest.raises(UserError, match=f"2\\*\\*-{nearest} "):
        get("inceptionn", bound=bound)


# Sizes.


def test_the_best_case_is_16_and_the_worst_case_one_sixteenth_more():
    count = 1 << 20
    directory = 4 * count // 16384
    c = codec(10)
    best, worst = encode(c, np.zeros(count, np.float32)), encode(c, np.ones(count, np.float32))
    assert best.size == 32 + directory + 4 * count / 16
    assert worst.size == 32 + directory + 4 * count * 1.0625 == max_payload_bytes(c, count)
    assert tag_shares(np.zeros(9, np.float32)).ratio == 16
    assert tag_shares(np.full(9, np.nan, np.float32)).ratio == 32 / 34


def test_shares_give_the_size():
    x = normal(0.02, 1 << 16)
    for bound in (2**-10, 2**-8, 2**-6):
        shares = tag_shares(x, bound)
        assert sum(shares) == pytest.approx(1)
        size = encode(get("inceptionn", bound=bound), x).size - 32 - 4 * 4
        assert size == pytest.approx(4 * x.size / shares.ratio)


def test_what_is_not_finite_passes():
    x = floats([0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x80000000, 0x00000001])
    assert round_trip(x, 2**-10).view(np.uint32).tolist() == [*x.view(np.uint32)[:5].tolist(), 0, 0]


def test_impossible_parameters_are_refused():
    payload = encode(codec(10), np.ones(3, np.float32))
    for at, value in ((16, 0), (16, 16), (17, 1)):
        changed = payload.copy()
        changed[at] = value
        with pytest.raises(PayloadError, match="parameters"):
            decode(changed)


@pytest.mark.everyday("1-inceptionn", "3-inceptionn", "3-inceptionn-scaled")
@pytest.mark.skipif(BACKENDS == ["reference"], reason="needs the extension: make native")
@pytest.mark.parametrize("name", ["inceptionn", "inceptionn-scaled"])
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_the_number_of_threads_changes_nothing(name, threads):
    x = normal(0.05, 400_001) * np.float32(1 - np.arange(400_001) // 50_000 % 2)  # chunks of very different lengths
    c = get(name, bound=2.0**-9)
    expected = encoded("reference", c, x)
    values = decoded("reference", c, expected, x.size).tobytes()
    set_threads(threads)
    try:
        for backend in BACKENDS[1:]:
            for _ in range(5):
                assert encoded(backend, c, x) == expected
                assert decoded(backend, c, expected, x.size).tobytes() == values
    finally:
        set_threads(None)
