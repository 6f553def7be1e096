"""fp8: PyTorch's e4m3 numbers, rounded without bias to one of two neighbours, in the same bytes everywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import block_oracle as bo
import oracle
from every_backend import drawn
from paceline.codecs import ADD, PayloadError, counter, decode, encode, get
from paceline.codecs.reference.fp8 import VALUES

NUMBERS = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
"""PyTorch's value of every code; 0x7f and 0xff are NaN."""
MAGNITUDES = NUMBERS[:127].astype(np.float64)


@pytest.fixture(params=bo.BACKENDS)
def backend(request):
    return request.param


def test_codes_have_the_values_of_pytorchs_e4m3():
    assert np.array_equal(VALUES, NUMBERS, equal_nan=True)
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="needs ml_dtypes: pip install ml_dtypes")
    assert np.array_equal(
        np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32), VALUES, equal_nan=True
    )


@pytest.mark.parametrize("item", bo.golden("fp8"), ids=lambda item: item["name"])
def test_golden(item, backend):
    payload = encode(get("fp8", **item["options"]), item["x"], **drawn(item["draws"]), backend=backend)
    assert payload.tobytes().hex() == item["payload"]
    assert np.array_equal(decode(payload, backend=backend).view(np.uint32), bo.golden_input(item["decoded"]).view(np.uint32))


def expected(x: np.ndarray, block: int, seed: int, start: int) -> np.ndarray:
    """By the definition, in fp64: scale, neighbours, and the draw's share of their distance."""
    out = np.zeros(x.size)
    draws = oracle.draws(seed, 0, 0, start, x.size) >> 4
    for first in range(0, x.size, block):
        part = x[first : first + block].astype(np.float64)
        peak = np.abs(part).max()
        power = max(int(np.ceil(np.log2(peak / 448))) if peak else -126, -126)
        scale = 2.0**power
        for k, value in enumerate(part):
            y = min(abs(value) / scale, 240.0 if power == 120 else 448.0)
            at = int(np.searchsorted(MAGNITUDES, y, side="right")) - 1
            step = MAGNITUDES[min(at + 1, 126)] - MAGNITUDES[at]
            cut = int((y - MAGNITUDES[at]) / step * 2**20) if step else 0
            out[first + k] = np.copysign(MAGNITUDES[at + (cut + int(draws[first + k]) >= 2**20)] * scale, value)
    return out.astype(np.float32)


@given(
    st.sampled_from(bo.BACKENDS), st.sampled_from(bo.KINDS), st.integers(0, 200), st.sampled_from([64, 128]), st.integers(0, 99)
)
def test_every_value_is_the_neighbour_that_its_draw_selects(backend, kind, count, block, seed):
    x = bo.gradient(kind, count, seed)
    payload = encode(get("fp8", block=block), x, counter.key(seed, 0), start=7, backend=backend)
    decoded = decode(payload, backend=backend)
    assert np.array_equal(decoded.view(np.uint32), expected(x, block, seed, 7).view(np.uint32))
    out = np.ones(count, np.float32)
    assert np.array_equal(decode(payload, out, ADD, backend=backend), 1 + decoded)
    again = encode(get("fp8", block=block), decoded, counter.key(seed + 1, 0), backend=backend)
    assert np.array_equal(
        decode(again, backend=backend).view(np.uint32), decoded.view(np.uint32)
    )  # decoded values encode exactly


def test_the_mean_over_all_draws_is_the_value(backend):
    """A block of equal magnitudes gets 2^14 draws of 20 bits each; sigma of their mean is below half a step over 2^7."""
    for value in (0.3, 1.0, 447.0, 1e-3, 3e-39):
        x = np.full(1 << 14, value, np.float32)
        x[::1024] = 448 if value > 1e-30 else 3e-39
        decoded = decode(encode(get("fp8"), x, counter.key(5, 1), backend=backend), backend=backend)
        step = np.diff(np.unique(np.delete(decoded, slice(0, None, 1024)))).max(initial=0)
        assert (
            abs(np.delete(decoded, slice(0, None, 1024)).astype(np.float64).mean() - np.float64(np.float32(value))) <= step / 20
        )


def test_error_is_an_eighth_of_each_value_whatever_the_neighbours(backend):
    x = bo.gradient("laplace", 4096, 3)
    x[::1024] = 50 * np.abs(x).max()
    error = np.abs(decode(encode(get("fp8"), x, counter.key(1, 1), backend=backend), backend=backend) - x)
    assert (error <= np.abs(x) / 8 + np.abs(x).max() * 2.0**-16).all()


@pytest.mark.parametrize("what", ["NaN", "no power", "zero scale", "large scale", "overflow"])
def test_a_body_that_no_encoder_writes_is_refused(what, backend):
    codec, x = get("fp8", block=64), np.ones(100, np.float32)
    bad = bytearray(encode(codec, x)[32:].tobytes())
    scale = {"no power": 1.5, "zero scale": 0, "large scale": 2.0**121, "overflow": 2.0**120}.get(what)
    if scale is None:
        bad[-1] = 0xFF
    else:
        bad[4:8] = np.float32(scale).tobytes()
    if what == "overflow":
        bad[-1] = 0x78
    out = x.copy()
    with pytest.raises(PayloadError):
        decode(bo.sealed(codec, x.size, bytes(bad)), out, ADD, backend=backend)
    if backend == "native":
        assert np.array_equal(out, x)
