"""int8, int4 and sign: the described bytes, rounding without bias, errors within their bound, malformed bodies refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import block_oracle as bo
from every_backend import drawn
from paceline.codecs import ADD, SUBTRACT, PayloadError, UserError, counter, decode, encode, get, payload_bytes
from paceline.codecs.container import HEADER_BYTES
from paceline.codecs.reference.integer import quantize

LEVELS = {"int8": 127, "int4": 7}
NAMES = ("int8", "int4", "sign")
DRAWS = {"seed": 0, "step": 0, "rank": 0, "start": 0}
finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@pytest.fixture(params=bo.BACKENDS)
def backend(request):
    return request.param


def body(payload):
    return payload[HEADER_BYTES:].tobytes()


def expected_body(name, x, block, draws):
    return bo.sign_body(x, block) if name == "sign" else bo.integer_body(x, LEVELS[name], block, **draws)


def with_body(name, x, changed, **options):
    """A payload with this body and a correct header and checksum: only the kernel can find fault with it."""
    return bo.sealed(get(name, **options), x.size, changed)


@pytest.mark.parametrize(("name", "item"), [(n, i) for n in NAMES for i in bo.golden(n)], ids=lambda v: str(v)[:40])
def test_golden(name, item, backend):
    codec = get(name, **item["options"])
    payload = encode(codec, item["x"], **drawn(item["draws"]), backend=backend)
    assert payload.tobytes().hex() == item["payload"]
    assert np.array_equal(decode(payload, backend=backend).view(np.uint32), bo.golden_input(item["decoded"]).view(np.uint32))
    assert body(payload) == expected_body(name, item["x"], codec.block, item["draws"])


def test_the_bytes_by_hand(backend):
    # int4, largest magnitude 7: the rate is 2**24 exactly, so every integer is its own code, whatever the draw.
    #   7 and -3 -> 7 | 13 << 4 = d7      0 and 1 -> 10      5 and padding -> 05      scale 7.0 = 40e00000
    payload = encode(get("int4"), np.array([7, -3, 0, 1, 5], np.float32), backend=backend)
    assert body(payload).hex() == "0000e040" + "d71005"
    # sign: mean of 1, 3, 0, 4 is 2.0 = 40000000; elements 1 and 3 are negative.
    payload = encode(get("sign"), np.array([1, -3, 0, -4], np.float32), backend=backend)
    assert body(payload).hex() == "00000040" + "0a"


@given(
    st.sampled_from(NAMES),
    st.sampled_from(bo.KINDS),
    st.integers(0, 300),
    st.sampled_from([64, 128]),
    st.integers(0, 2**40),
    st.integers(0, 99),
)
def test_the_reference_writes_what_the_description_says(name, kind, count, block, start, seed):
    x = bo.gradient(kind, count, seed)
    payload = encode(get(name, block=block), x, counter.key(seed, 0), start=start, backend="reference")
    assert body(payload) == expected_body(name, x, block, DRAWS | {"seed": seed, "start": start})


@given(st.sampled_from(["int8", "int4"]), hnp.arrays(np.float32, st.integers(1, 200), elements=finite), st.integers(0, 2**64))
def test_no_error_reaches_a_step(name, x, seed):
    decoded = decode(encode(get(name, block=64), x, counter.key(seed, 0)))
    for got, part in zip(bo.blocks(decoded, 64), bo.blocks(x, 64), strict=True):
        step = float(np.abs(part).max()) / LEVELS[name]
        assert (np.abs(got.astype(np.float64) - part) < step * (1 + 2.0**-14) + 2.0**-149).all()
        assert (got * np.sign(part) >= 0).all() and np.abs(got).max() == np.abs(part).max()


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("value", [0.3, -7e-3, 2.0**-149, 3.4028234663852886e38, -1e-41, 1 / 3, 0.0])
def test_equal_magnitudes_are_exact(name, value, backend):
    x = np.full(3000, value, np.float32)
    x[::3] *= -1
    x[5:9] = 0
    codec = get(name)
    for seed in range(20):
        assert np.array_equal(decode(encode(codec, x, counter.key(seed, 0), backend=backend), backend=backend), x)


@pytest.mark.parametrize("levels", [127, 7])
def test_the_largest_magnitude_has_the_largest_code_whatever_the_draw(levels):
    # Draw 0 is the hardest: one unit of 2**-24 less in front of it and the code is L - 1.
    words = np.random.default_rng(0).integers(1, 0x7F800000, 20_000, dtype=np.uint32)
    peak = np.concatenate([words, np.arange(1, 3000, dtype=np.uint32)]).view(np.float32)
    for draw in (0, 2**24 - 1):
        assert (quantize(peak[:, None], peak, levels, np.full((peak.size, 1), draw, np.uint32)) == levels).all()


@pytest.mark.everyday("0.77-127", f"{2.0**-40}-7")
@pytest.mark.parametrize("levels", [127, 7])
@pytest.mark.parametrize("value", [0.77, 0.5, 1.0 - 2.0**-24, 1e-3, 3e-8, 2.0**-40])
def test_the_mean_over_every_possible_draw_is_exact(levels, value):
    # 2**24 equally likely draws: their codes add up to the integer L |x| / m * 2**24, so the mean is off by its rounding only.
    peak = np.float32(0.9)
    x = np.float32(value) * peak
    total = sum(
        int(
            quantize(np.full((1, 2**20), x), np.array([peak]), levels, np.arange(f, f + 2**20, dtype=np.uint32)[None]).sum(
                dtype=np.int64
            )
        )
        for f in range(0, 2**24, 2**20)
    )
    wanted = levels * float(x) / float(peak)
    assert abs(total / 2**24 - wanted) <= 2.0**-24 + wanted * 2.0**-22


@pytest.mark.everyday(
    "reference-normal-int8",
    "reference-laplace-int8",
    "reference-sparse-int8",
    "reference-denormal-int8",
    "reference-huge-int8",
    "native-normal-int4",
    "native-laplace-int4",
    "native-sparse-int4",
    "native-denormal-int4",
)
@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("kind", ["normal", "laplace", "sparse", "denormal", "huge"])
def test_the_mean_of_many_decodings_is_the_gradient(name, kind, backend):
    # One code is floor or ceil, so its variance is p (1 - p) steps; six sigma, and fp32's own rounding.
    x = bo.gradient(kind, 1500, 5)
    codec = get(name, block=256)
    repeats = 400
    total = np.zeros(x.size)
    for step in range(repeats):
        total += decode(encode(codec, x, counter.key(7, step), backend=backend), backend=backend).astype(np.float64)
    peak = np.repeat([float(np.abs(b).max()) for b in bo.blocks(x, 256)], 256)[: x.size]
    unit = peak / LEVELS[name]
    p = np.abs(x) / unit % 1
    sigma = unit * np.sqrt(p * (1 - p) / repeats)
    error = total / repeats - x
    assert (np.abs(error) <= 6 * sigma + 6 * unit / repeats + 1e-6 * peak + 2.0**-149).all()
    drift = np.sum(error * np.sign(x))
    assert abs(drift) <= 6 * np.sqrt(np.sum(sigma**2)) + 1e-6 * peak.sum() + 2.0**-149 * x.size


@given(hnp.arrays(np.float32, st.integers(1, 200), elements=finite))
def test_sign_is_the_mean_magnitude_with_each_sign(x):
    decoded = decode(encode(get("sign", block=64), x))
    assert np.array_equal(np.signbit(decoded), np.signbit(x))
    for got, part in zip(bo.blocks(decoded, 64), bo.blocks(x, 64), strict=True):
        wide = np.abs(part).astype(np.float64)
        assert len(set(np.abs(got).tolist())) == 1
        assert abs(float(abs(got[0])) - wide.mean()) <= 2.0**-22 * wide.max() + 2.0**-149


def test_sign_keeps_the_energy_of_the_theory():
    # Karimireddy et al. 2019, Lemma 8: |x - C(x)|**2 = (1 - |x|_1**2 / (n |x|_2**2)) |x|_2**2; for a normal law 1 - 2 / pi.
    x = bo.gradient("normal", 1024, 3).astype(np.float64)
    decoded = decode(encode(get("sign"), x)).astype(np.float64)
    wanted = np.sum(x**2) - np.abs(x).sum() ** 2 / x.size
    assert np.sum((x - decoded) ** 2) == pytest.approx(wanted, rel=1e-5)
    assert np.sum((x - decoded) ** 2) / np.sum(x**2) == pytest.approx(1 - 2 / np.pi, abs=0.03)


@pytest.mark.parametrize("value", [0.3, -1e-42, 3.3e38, 2.0**-149])
@pytest.mark.parametrize("count", [3, 1024, 1500])
def test_sign_of_equal_magnitudes_is_exact(value, count, backend):
    x = np.full(count, value, np.float32)
    x[::3] *= -1
    assert np.array_equal(decode(encode(get("sign"), x, backend=backend), backend=backend), x)


@pytest.mark.parametrize("name", NAMES)
def test_adding_and_subtracting_are_one_rounding(name, backend):
    x, before = bo.gradient("normal", 2777, 1), bo.gradient("laplace", 2777, 2)
    payload = encode(get(name), x)
    value, out = decode(payload, backend="reference"), before.copy()
    decode(payload, out, ADD, backend=backend)
    assert np.array_equal(out, before + value)
    out = before.copy()
    decode(payload, out, SUBTRACT, backend=backend)
    assert np.array_equal(out, before - value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 700, 1024, 2998])
def test_nan_and_infinity_are_refused_wherever_they_are(name, bad, at, backend):
    x = np.ones(2999, np.float32)
    x[at] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        encode(get(name), x, backend=backend)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, -1.0, -0.0])
def test_an_impossible_scale_is_refused_and_out_stays(name, scale, backend):
    x = bo.gradient("normal", 2500, 1)
    bad = body(encode(get(name), x))
    out = x.copy()
    with pytest.raises(PayloadError, match="scale"):
        decode(with_body(name, x, bad[:8] + struct.pack("<f", scale) + bad[12:]), out, ADD, backend=backend)
    assert np.array_equal(out, x)


@pytest.mark.parametrize(("name", "code"), [("int8", 0x80), ("int4", 0x08), ("int4", 0x80)])
@pytest.mark.parametrize("at", [0, 33, 64, 1000, 1240])
def test_the_unused_code_is_refused(name, code, at, backend):
    x = bo.gradient("normal", 2501, 1)
    bad = bytearray(body(encode(get(name), x)))
    bad[12 + at] = code
    with pytest.raises(PayloadError, match="code -"):
        decode(with_body(name, x, bytes(bad)), backend=backend)


@pytest.mark.parametrize(
    ("name", "count", "bit"), [("int4", 77, 4), ("int4", 1, 7), ("sign", 77, 5), ("sign", 1, 1), ("sign", 1030, 6)]
)
def test_padding_that_is_not_zero_is_refused(name, count, bit, backend):
    x = bo.gradient("normal", count, 1)
    bad = bytearray(body(encode(get(name), x)))
    bad[-1] |= 1 << bit
    with pytest.raises(PayloadError, match="padding"):
        decode(with_body(name, x, bytes(bad)), backend=backend)


@pytest.mark.parametrize("name", NAMES)
def test_options_and_parameters_out_of_range(name):
    for block in (0, 32, 100, 1 << 17, -64):
        with pytest.raises(UserError, match="block"):
            get(name, block=block)
    for parameters in (bytes([5]), bytes([17]), bytes([10, 1]), bytes([10, 0, 0, 0, 0, 0, 0, 9])):
        with pytest.raises(PayloadError, match="parameters"):
            type(get(name)).of(parameters.ljust(8, b"\0"))


def test_sizes():
    assert [payload_bytes(get(n), 10_000) - 32 for n in NAMES] == [40 + 10_000, 40 + 5_000, 40 + 1_250]
    assert payload_bytes(get("int4", block=64), 65) == 32 + 8 + 33
