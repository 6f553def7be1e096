"""Bytes on the wire and the rules of what stays dense."""

from __future__ import annotations

from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.codecs.container import HEADER_BYTES as CODECS_HEADER
from paceline.codecs.registry import BY_NAME
from paceline.strategy import BF16, COMPRESSIONS, EXCHANGES, FP32, HEADER_BYTES, TERNARY, DenseRule
from paceline.strategy.codec_rates import CPU_RATES
from paceline.strategy.formats import INCEPTIONN_BITS, TABLE_III
from paceline.workload import Parameter, Workload

# TernGrad slides: bits of the sum of N ternaries, log2(2N+1), here rounded up to whole bits.
PULL_BITS = {2: 2.32, 4: 3.17, 8: 4.09, 16: 5.04, 32: 6.02, 64: 7.01, 128: 8.01, 256: 9.003, 512: 10.001}


def tensor(name: str, *shape: int) -> Parameter:
    return Parameter(name=name, shape=shape, layer=0, ready=0)


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


def test_dense_rule_names_its_reasons():
    tensors = [
        tensor("conv.weight", 64, 32),
        tensor("conv.bias", 64),
        tensor("embedding.weight", 5000, 10),
        tensor("norm.weight", 2048),
        tensor("fc.weight", 10, 2048),
        tensor("fc.bias", 10),
    ]
    assert DenseRule(names=("embedding.*",)).dense(tensors) == {
        "conv.bias": "fewer than 1024 elements",
        "embedding.weight": "named by the user",
        "fc.weight": "last layer",
        "fc.bias": "last layer",
    }
    assert DenseRule(min_elements=0, last_layer=False).dense(tensors) == {}


@pytest.mark.parametrize(("net", "last"), [("alexnet", "fc8"), ("vgg-a", "classifier.6"), ("resnet-50", "fc")])
def test_the_last_layer_of_a_network_stays_dense(net, last):
    parameters = Workload.named(net).parameters
    dense = COMPRESSIONS["terngrad"].dense(parameters)
    final = parameters[-1].name.rpartition(".")[0]
    assert [name for name, why in dense.items() if why == "last layer"] == [
        p.name for p in parameters if p.name.startswith(f"{final}.")
    ]


def test_only_a_coarse_codec_that_forgets_its_error_spares_the_last_layer():
    spared = {name for name, c in COMPRESSIONS.items() if "fc8.weight" in c.dense(Workload.named("alexnet").parameters)}
    assert spared == {"terngrad", "int4", "inceptionn"}


def test_a_rule_reads_as_a_sentence():
    assert str(DenseRule(names=("*.emb",))) == "dense: the last layer, tensors of fewer than 1024 elements, tensors named *.emb"


@pytest.mark.parametrize("compression", COMPRESSIONS.values(), ids=COMPRESSIONS)
def test_descriptions_are_complete(compression):
    assert compression.exchanges
    assert set(compression.exchanges) <= set(EXCHANGES)
    assert compression.cpu_rate.encode.value > 0 and compression.cpu_rate.decode.source
    assert compression.title and compression.format.element_bits > 0
    assert (compression.format == FP32) == (compression.name == "dense")
    assert bool(compression.citation) == (compression.name != "dense")
    assert not compression.shares_scale or "allreduce" not in compression.exchanges


def test_every_compression_has_a_rate_and_no_other():
    assert set(CPU_RATES) == set(COMPRESSIONS)


def test_a_message_is_a_header_and_a_body_and_nothing_of_nothing():
    assert HEADER_BYTES == CODECS_HEADER
    assert [fmt.message_bytes(0) for fmt in (FP32, BF16, TERNARY)] == [0, 0, 0]
    assert TERNARY.message_bytes(9) == 32 + 4
    assert TERNARY.message_bytes(9, 3) == 32 + 2 * 3


CODECS = {"dense": "fp32", "terngrad": "ternary"}
"""Names of codecs where they are not those of the compressions."""


@pytest.mark.parametrize("name", [n for n in COMPRESSIONS if CODECS.get(n, n) in BY_NAME])
@pytest.mark.parametrize("count", [0, 1, 7, 64, 1000, 100_003, 1 << 20])
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
