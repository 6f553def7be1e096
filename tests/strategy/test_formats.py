"""Bytes of a message: exact where the length is fixed, a range where it depends on the values."""

from __future__ import annotations

from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_row import each_row
from paceline.codecs.container import HEADER_BYTES as CODECS_HEADER
from paceline.codecs.registry import BY_NAME
from paceline.strategy import BF16, COMPRESSIONS, FP32, HEADER_BYTES, TERNARY
from paceline.strategy.compression.formats import TABLE_III, inceptionn, whole_numbers

# TernGrad slides: bits of the sum of N ternaries, log2(2N+1), here rounded up to whole bits.
PULL_BITS = {2: 2.32, 4: 3.17, 8: 4.09, 16: 5.04, 32: 6.02, 64: 7.01, 128: 8.01, 256: 9.003, 512: 10.001}
INCEPTIONN_BITS = (2.0, 34.0)
"""Of a value, tag included: Li et al. 2018 (INCEPTIONN), algorithm 2 and table III: 2, 10, 18 or 34."""


@pytest.mark.parametrize(("workers", "bits"), PULL_BITS.items())
def test_pull_bits_of_the_ternary_sum(workers, bits):
    assert log2(2 * workers + 1) == pytest.approx(bits, abs=0.006)
    assert TERNARY.pull_bits(workers) == ceil(log2(2 * workers + 1))


@given(st.integers(1, 10**6))
def test_pull_bits_hold_every_sum_and_not_one_bit_more(workers):
    bits = TERNARY.pull_bits(workers)
    assert 2**bits >= 2 * workers + 1 > 2 ** (bits - 1)


@pytest.mark.parametrize(("count", "push"), [(0, 0), (1, 2), (8, 2), (9, 4), (1000, 250)])
def test_ternary_push_is_two_bits_in_groups_of_eight(count, push):
    assert TERNARY.push_bytes(count) == push


@given(st.integers(0, 10**7), st.integers(2, 1024))
def test_formats_send_whole_bytes(count, workers):
    assert FP32.push_bytes(count) == FP32.pull_bytes(count, workers) == 4 * count
    assert BF16.push_bytes(count) == BF16.pull_bytes(count, workers) == 2 * count
    bits = TERNARY.pull_bits(workers) * count
    assert bits <= 8 * TERNARY.pull_bytes(count, workers) < bits + 8 * TERNARY.pull_bits(workers) + 1


def test_a_message_is_a_header_and_a_body_and_nothing_of_nothing():
    assert HEADER_BYTES == CODECS_HEADER == 32
    assert [fmt.message_bytes(0) for fmt in (FP32, BF16, TERNARY)] == [0, 0, 0]
    assert TERNARY.message_bytes(9) == 32 + 4
    assert TERNARY.message_bytes(9, 3) == 32 + 2 * 3


CODECS = {"dense": "fp32", "terngrad": "ternary"}
"""Names of codecs where they are not those of the compressions."""


@each_row("name", [n for n in COMPRESSIONS if CODECS.get(n, n) in BY_NAME])
@each_row("count", [0, 1, 7, 64, 1000, 100_003, 1 << 20])
def test_described_bytes_hold_the_codecs_own(name, count):
    fmt, codec = COMPRESSIONS[name].format, BY_NAME[CODECS.get(name, name)]()
    least, most = codec.body_range(count)
    if fmt.spread is None:
        assert least == pytest.approx(fmt.push_bytes(count), rel=0.02, abs=32) == most
    else:
        assert (
            least
            <= fmt.at("low").push_bytes(count)
            <= fmt.at("most").push_bytes(count)
            == pytest.approx(most, rel=0.02, abs=32)
        )


@pytest.mark.parametrize(
    ("name", "options", "bits"),
    [
        ("int8", {}, 8 + 32 / 1024),
        ("int8", {"block": 256}, 8 + 32 / 256),
        ("int4", {"block": 64}, 4.5),
        ("fp8", {"block": 128}, 8 + 32 / 128),
        ("sign", {}, 1 + 32 / 1024),
        ("topk", {"density": 0.25}, 1 + 8),
        ("topk", {"density": 0.0001, "value_bits": 16}, 0.0001 * (16 + 17) + 2**-16),
        ("inceptionn", {"ratio": 8}, 4 + 32 / 16384),
        ("inceptionn-scaled", {"ratio": 8}, 4 + 32 / 16384 + 16 / 1024),
        ("inceptionn-scaled", {"ratio": 0.5, "bound": 2**-6}, 10 + 32 / 16384 + 16 / 1024),
        ("inceptionn-scaled", {"ratio": 0.5, "bound": 2**-7}, 18 + 32 / 16384 + 16 / 1024),
    ],
)
def test_bits_of_an_element(name, options, bits):
    fmt = COMPRESSIONS[name].configured(options).format
    assert 8 * fmt.push_bytes(1 << 20) == pytest.approx(bits * (1 << 20), rel=2e-3, abs=64)


@pytest.mark.parametrize(("bound", "row"), TABLE_III.items())
def test_the_range_of_inceptionn_is_that_of_the_paper(bound, row):
    fmt = COMPRESSIONS["inceptionn"].configured({"bound": bound}).format
    ratios = [32 / fmt.at(level).element_bits for level in ("high", "expected", "low")]
    assert ratios[0] == pytest.approx(min(row)) and ratios[2] == pytest.approx(max(row))
    assert ratios == sorted(ratios)
    assert fmt.at("most").element_bits == INCEPTIONN_BITS[1]


def test_a_tighter_bound_than_published_has_the_worst_for_its_high_end():
    fmt = COMPRESSIONS["inceptionn"].configured({"bound": 2**-13}).format
    assert fmt.at("high").element_bits == INCEPTIONN_BITS[1]


@given(st.sampled_from([2.0**-k for k in range(1, 15)]))
def test_scaled_bits_lie_in_their_range_and_grow_with_the_tightness(bound):
    scaled = COMPRESSIONS["inceptionn-scaled"]
    fmt = scaled.configured({"bound": bound}).format
    assert fmt.at("low").element_bits <= fmt.element_bits <= fmt.at("high").element_bits == fmt.at("most").element_bits
    assert fmt.element_bits <= scaled.configured({"bound": max(bound / 2, 2**-14)}).format.element_bits


@pytest.mark.parametrize("name", COMPRESSIONS)
@settings(max_examples=30)
@given(count=st.integers(0, 10**6), more=st.integers(0, 10**4), contributions=st.integers(1, 64))
def test_more_elements_or_contributions_are_no_fewer_bytes(name, count, more, contributions):
    fmt = COMPRESSIONS[name].format
    assert fmt.message_bytes(count) <= fmt.message_bytes(count + more)
    assert fmt.pull_bytes(count, contributions) <= fmt.pull_bytes(count, contributions + 1)
    assert fmt.push_bytes(count) == fmt.pull_bytes(count, 1)
    lengths = [fmt.at(level).push_bytes(count) for level in ("low", "expected", "high", "most")]
    assert lengths == sorted(lengths) and (fmt.spread is not None or len(set(lengths)) == 1)


@given(st.integers(0, 10**6), st.integers(6, 16))
def test_each_started_block_has_its_scale(count, power):
    fmt = whole_numbers("int4", 4, {"block": 2**power})
    assert fmt.push_bytes(count) == ceil(count / 2) + 4 * ceil(count / 2**power)


@given(st.floats(0.1, 1000))
def test_a_measured_ratio_replaces_the_range_but_not_the_worst(ratio):
    fmt = inceptionn({"bound": 2.0**-10, "ratio": ratio})
    assert fmt.spread is not None and fmt.at("low") == fmt.at("high")
    assert fmt.element_bits == min(INCEPTIONN_BITS[1], max(INCEPTIONN_BITS[0], 32 / ratio))
    assert fmt.at("most").element_bits == INCEPTIONN_BITS[1] and f"{ratio:g}, given" in fmt.spread.source


def test_coded_exponents_take_at_least_the_byte_of_sign_and_mantissa():
    fmt = COMPRESSIONS["bf16-coded"].configured({"ratio": 16.0}).format
    assert fmt.spread is not None and fmt.element_bits == fmt.spread.least == 8
