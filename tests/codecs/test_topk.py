"""topk: exactly the largest, ties to the lowest index, in the described bytes; malformed bodies refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import block_oracle as bo
from paceline.codecs import ADD, SUBTRACT, PayloadError, UserError, decode, encode, get, payload_bytes
from paceline.codecs.reference.topk import TopK, layout

HEADER_BYTES = 32
"""Of a header: docs/wire-format.md, "A message"."""


@pytest.fixture(params=bo.BACKENDS)
def backend(request):
    return request.param


def body(payload):
    return payload[HEADER_BYTES:].tobytes()


@pytest.mark.parametrize("item", bo.golden("topk"), ids=lambda item: item["name"])
def test_golden(item, backend):
    codec = get("topk", **item["options"])
    payload = encode(codec, item["x"], backend=backend)
    assert payload.tobytes().hex() == item["payload"]
    assert body(payload) == bo.topk_body(item["x"], codec.parts, codec.value_bits, codec.chunk)
    if item["decoded"] is not None:
        assert np.array_equal(
            decode(payload, backend=backend).view(np.uint32), bo.golden_input(item["decoded"]).view(np.uint32)
        )


def test_the_bytes_by_hand(backend):
    # Two of four: -2 at 1 and 2 at 3. One bit an element is shortest: bits 1 and 3, padded to 8 bytes; then the values.
    payload = encode(get("topk", density=0.5), np.array([0.5, -2, 1, 2], np.float32), backend=backend)
    assert body(payload).hex() == "0a00000000000000" + "000000c0" + "00000040"
    # Two of 1500, at 3 and 600: 8 low bits each; ones at bits 0 + 0 and 1 + 600 // 256 = 3.
    x = np.zeros(1500, np.float32)
    x[[3, 600]] = 1, -1
    payload = encode(get("topk", density=0.001, value_bits=16), x, backend=backend)
    assert body(payload).hex() == "0900000000000000" + "803f" + "80bf" + "03" + "58"


@given(
    st.sampled_from(bo.BACKENDS),
    st.sampled_from(bo.KINDS),
    st.integers(0, 6000),
    st.sampled_from([0.0001, 0.001, 0.01, 0.07, 0.2, 0.5, 1.0]),
    st.sampled_from([16, 32]),
    st.integers(0, 99),
)
def test_the_described_bytes_of_an_independent_oracle(backend, kind, count, density, value_bits, seed):
    x = bo.gradient(kind, count, seed)
    codec = get("topk", density=density, value_bits=value_bits)
    payload = encode(codec, x, backend=backend)
    assert body(payload) == bo.topk_body(x, round(density * 10**6), value_bits)
    decoded = decode(payload, backend=backend)
    order = np.argsort(-np.abs(x), kind="stable")[: codec.kept(count)]
    assert not np.delete(decoded, order).any()
    if value_bits == 32:
        assert np.array_equal(decoded[order].view(np.uint32), x[order].view(np.uint32))
    else:
        assert (np.abs(decoded[order] - x[order]) <= np.abs(x[order]) * 2.0**-8 + 2.0**-134).all()


@given(
    st.sampled_from(bo.BACKENDS),
    st.sampled_from(bo.KINDS),
    st.integers(0, 900),
    st.sampled_from([0.0001, 1 / 64, 0.3, 1.0]),
    st.sampled_from([2, 16, 32]),
    st.sampled_from([64, 256]),
    st.integers(0, 99),
)
def test_chunks_have_the_described_bytes_too(backend, kind, count, density, value_bits, chunk, seed):
    x = bo.gradient(kind, count, seed)
    codec = get("topk", density=density, value_bits=value_bits, chunk=chunk)
    payload = encode(codec, x, backend=backend)
    assert body(payload) == bo.topk_body(x, round(density * 10**6), value_bits, chunk)
    out = np.ones(count, np.float32)
    decoded = decode(payload, backend=backend)
    assert np.array_equal(decode(payload, out, ADD, backend=backend), 1 + decoded)
    sent = np.abs(decoded) > 0
    assert (np.sign(decoded) == np.sign(x))[sent].all()
    kept = [np.count_nonzero(sent[first : first + chunk]) for first in range(0, count, chunk)]
    most = [codec.kept(min(chunk, count - first)) for first in range(0, count, chunk)]
    assert all(is_ <= may for is_, may in zip(kept, most, strict=True)) and codec.kept(count) == sum(most)


def test_sparseloco_takes_174_times_fewer_bytes_than_fp32(backend):
    """64 of 4,096 elements in 2 bits keep nearly the energy that bf16 keeps (Sarfi et al. 2025, section 3: 146 times)."""
    x = bo.gradient("normal", 1 << 16, 3)
    errors = {}
    for bits in (2, 32):
        payload = encode(get("topk", density=1 / 64, chunk=4096, value_bits=bits), x, backend=backend)
        errors[bits] = np.sum((x - decode(payload, backend=backend)).astype(np.float64) ** 2) / np.sum(
            x.astype(np.float64) ** 2
        )
        if bits == 2:
            assert 4 * x.size / payload.size > 160
    assert errors[32] < errors[2] < errors[32] + 0.001


@pytest.mark.parametrize("what", ["another chunk", "levels", "infinite level", "padding"])
def test_malformed_chunks(what, backend):
    codec, x = get("topk", density=0.02, chunk=64, value_bits=2), np.zeros(192, np.float32)
    x[[1, 2, 70, 71, 130, 131]] = range(1, 7)
    bad, at = bytearray(body(encode(codec, x))), codec.layout(x.size)
    assert (at.kept, at.low_bits, at.marks, len(bad)) == (6, 8, 8, 8 + 12 + 2 + 6)
    if what == "another chunk":
        bad[-5] = 64  # in place of element 2
    elif what == "levels":
        bad[at.marks : at.marks + 4] = struct.pack("<HH", 0x4000, 0x3F80)
    elif what == "infinite level":
        bad[at.marks + 2 : at.marks + 4] = struct.pack("<H", 0x7F80)
    else:
        bad[at.marks + 13] |= 0x80
    with pytest.raises(PayloadError):
        decode(bo.sealed(codec, x.size, bytes(bad)), x.copy(), ADD, backend=backend)


@pytest.mark.parametrize("value", [0.0, -0.0, 0.3, -(2.0**-149)])
@pytest.mark.parametrize("count", [1, 999, 200_001])
def test_all_equal_takes_the_first(value, count, backend):
    x = np.full(count, value, np.float32)
    codec = get("topk")
    decoded = decode(encode(codec, x, backend=backend), backend=backend)
    k = -(-count // 100)
    assert np.array_equal(decoded[:k].view(np.uint32), x[:k].view(np.uint32)) and not decoded[k:].any()


@pytest.mark.everyday(*(f"{backend}-{kind}-300007" for backend in ("reference", "native") for kind in bo.KINDS))
@pytest.mark.parametrize("count", [131_071, 300_007])
@pytest.mark.parametrize("kind", bo.KINDS)
def test_many_elements(kind, count, backend):
    # Enough for a threshold guessed from a sample, for several chunks, and for ties that cross their borders.
    x = bo.gradient(kind, count, 4)
    order = np.argsort(-np.abs(x), kind="stable")
    for density in (0.0001, 0.01, 0.3):
        codec = get("topk", density=density)
        chosen = np.zeros(count, np.float32)
        kept = order[: codec.kept(count)]
        chosen[kept] = x[kept]
        assert np.array_equal(decode(encode(codec, x, backend=backend), backend=backend), chosen)


@pytest.mark.parametrize("where", ["first", "last", "comb"])
def test_all_large_elements_in_one_place(where, backend):
    # The sample misses or overrates such a tensor; the result must not depend on it.
    x = bo.gradient("normal", 400_000, 1) * np.float32(1e-3)
    place = {"first": slice(0, 3900), "last": slice(-3900, None), "comb": slice(7, None, 100)}[where]
    x[place] += 5
    codec = get("topk")
    order = np.argsort(-np.abs(x), kind="stable")[:4000]
    assert np.array_equal(np.flatnonzero(decode(encode(codec, x, backend=backend), backend=backend)), np.sort(order))


def test_energy_kept_is_the_most_possible(backend):
    x = bo.gradient("laplace", 50_000, 2)
    codec = get("topk", density=0.1)
    kept = np.sum(decode(encode(codec, x, backend=backend), backend=backend).astype(np.float64) ** 2)
    squares = np.sort(x.astype(np.float64) ** 2)
    assert kept == pytest.approx(squares[-5000:].sum(), rel=1e-12)
    # Laplace: the tail beyond t = ln 10 holds t**2/2 + t + 1 times 10 % of the energy.
    t = np.log(10)
    assert kept / squares.sum() == pytest.approx((t * t / 2 + t + 1) / 10, abs=0.02)


def test_adding_and_subtracting_leave_the_rest_alone(backend):
    x, before = bo.gradient("normal", 7777, 1), bo.gradient("laplace", 7777, 2)
    payload = encode(get("topk"), x)
    value, out = decode(payload, backend="reference"), before.copy()
    decode(payload, out, ADD, backend=backend)
    assert np.array_equal(out, before + value)
    decode(payload, out, SUBTRACT, backend=backend)
    assert np.array_equal(out, before + value - value)
    assert np.array_equal(decode(payload, out, backend=backend), value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("count", [10, 250_000])
def test_nan_and_infinity_are_refused_wherever_they_are(bad, count, backend):
    for at in (0, count // 2, count - 1):
        x = bo.gradient("laplace", count, 1)
        x[at] = bad
        with pytest.raises(ValueError, match="NaN or infinity"):
            encode(get("topk"), x, backend=backend)


def test_a_value_never_rounds_up_to_infinity(backend):
    largest = np.finfo(np.float32).max
    codec = get("topk", density=1, value_bits=16)
    decoded = decode(encode(codec, np.array([largest, -largest], np.float32), backend=backend), backend=backend)
    assert decoded.tolist() == [float.fromhex("0x1.fep127"), -float.fromhex("0x1.fep127")]


def sparse(low_bits, kept=4):
    """A codec and a tensor whose positions take this many low bits."""
    count = {0: 64, 8: 4000, 16: 40_000}[low_bits]
    codec = get("topk", density={0: 0.0625, 8: 0.001, 16: 0.0001}[low_bits])
    assert codec.layout(count).low_bits == low_bits and codec.kept(count) == kept
    x = np.zeros(count, np.float32)
    x[[1, 2, count // 2, count - 1]] = 1, 2, 3, 4
    return codec, x


@pytest.mark.parametrize("low_bits", [0, 8, 16])
@pytest.mark.parametrize("what", ["one mark more", "one mark less", "mark in the padding", "NaN", "infinity"])
def test_malformed_marks_and_values(low_bits, what, backend):
    codec, x = sparse(low_bits)
    bad = bytearray(body(encode(codec, x)))
    if what == "one mark less":
        bad[0] &= bad[0] - 1
    elif what == "one mark more":
        bad[0] |= bad[0] + 1
    elif what == "mark in the padding":
        bad[0] &= bad[0] - 1
        bad[7] |= 0x80
        if low_bits == 0:  # no padding: put it back where it was twice over
            bad[0], bad[1] = 0, 0
    else:
        bad[8:12] = struct.pack("<f", np.nan if what == "NaN" else -np.inf)
    out = x.copy()
    with pytest.raises(PayloadError, match=r"marks|values"):
        decode(bo.sealed(codec, x.size, bytes(bad)), out, ADD, backend=backend)
    assert np.array_equal(out, x)


@pytest.mark.parametrize("low_bits", [8, 16])
@pytest.mark.parametrize("what", ["twice", "descending", "beyond"])
def test_malformed_indices(low_bits, what, backend):
    codec, x = sparse(low_bits)
    bad = bytearray(body(encode(codec, x)))
    width = low_bits // 8
    first, second, last = len(bad) - 4 * width, len(bad) - 3 * width, len(bad) - width
    if what == "twice":
        bad[second : second + width] = bad[first : first + width]
    elif what == "descending":
        bad[second : second + width] = bytes(width)
    else:
        bad[last : last + width] = b"\xff" * width
    with pytest.raises(PayloadError, match="index"):
        decode(bo.sealed(codec, x.size, bytes(bad)), backend=backend)


def test_the_payload_bounds_the_elements_it_claims():
    # The least body of n elements: 10**-4 n values of 2 bytes. A short payload cannot ask for a large allocation.
    for count in (10**6, 10**9, 2**64 - 1):
        least, most = get("topk", density=0.0001, value_bits=16).body_range(count)
        assert least == most >= count * 2 // 10**4
        claim = bo.sealed(get("topk", density=0.0001, value_bits=16), count, bytes(64))
        with pytest.raises(PayloadError, match="take"):
            decode(claim)


@given(st.integers(0, 2**40), st.integers(100, 10**6), st.sampled_from([16, 32]))
def test_the_layout_is_the_shortest(count, parts, value_bits):
    kept = -(-count * parts // 10**6)
    at = layout(count, kept, value_bits)
    assert at.marks % 8 == 0 and at.mark_bits <= 8 * at.marks and at.values * 8 == kept * value_bits
    assert at.total <= -(-count // 64) * 8 + at.values
    assert at.total <= (kept + count // 256) // 64 * 8 + 8 + kept + at.values
    assert at.total <= (kept + count // 65536) // 64 * 8 + 8 + 2 * kept + at.values


def test_positions_come_near_the_entropy():
    # 1 % of 10**8: H(0.01) = 8.08 bits an element sent.
    codec = get("topk", density=0.01, value_bits=16)
    assert (payload_bytes(codec, 10**8) * 8 / 10**6) - 16 < 9.5
    assert (payload_bytes(get("topk", density=0.001), 10**8) * 8 / 10**5) - 32 < 13


def test_options_and_parameters_out_of_range():
    for density in (0, 0.00009, 1.0001, -1, float("nan")):
        with pytest.raises(UserError, match="density"):
            get("topk", density=density)
    with pytest.raises(UserError, match="8 bits"):
        get("topk", value_bits=8)
    for wrong in ({"value_bits": 2}, {"chunk": 100}, {"chunk": 32}, {"chunk": 1 << 17}):
        with pytest.raises(UserError, match="chunk"):
            get("topk", **wrong)
    for parameters in (struct.pack("<IB", 99, 32), struct.pack("<IB", 10**6 + 1, 32), struct.pack("<IB", 100, 8), b"\1" * 8):
        with pytest.raises(PayloadError, match="parameters"):
            TopK.of(parameters.ljust(8, b"\0"))
    for parts in (100, 333_333, 70_000, 1_000_000):
        assert TopK.of(struct.pack("<IBxxx", parts, 32)).parts == parts
    assert get("topk", density=0.07).kept(100) == 7
