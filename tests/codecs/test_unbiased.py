"""E[decode(encode(g))] is the clipped g, for many shapes and scales; and what clipping and scaling are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import oracle
from every_backend import decoded, encoded, labels
from paceline.codecs import counter, decode, encode, get, moments_of
from paceline.codecs.reference import ternary
from paceline.codecs.reference.ternary import Ternary

REPEATS = 400
SHAPES = ("normal", "laplace", "uniform", "one large", "sparse", "constant", "skewed")


def gradient(shape: str, count: int, scale: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    made = {
        "normal": rng.standard_normal(count),
        "laplace": rng.laplace(size=count),
        "uniform": rng.uniform(-1, 1, count),
        "one large": np.where(np.arange(count) == count // 2, 50.0, rng.standard_normal(count)),
        "sparse": np.where(rng.random(count) < 0.9, 0.0, rng.standard_normal(count)),
        "constant": np.full(count, -0.75),
        "skewed": rng.exponential(size=count),
    }[shape]
    return (made * scale).astype(np.float32)


@given(
    st.sampled_from(SHAPES),
    st.integers(1, 600),
    st.floats(-24, 30).map(lambda power: 10.0**power),
    st.sampled_from([None, 0.5, 2.5]),
    st.floats(1, 8),
    st.integers(0, 2**64 - 1),
)
def test_the_mean_of_many_decodings_is_the_clipped_gradient(shape, count, scale, clip, shared, seed):
    # One decoded element is s * sign * Bernoulli(p), p = |g| / s, so its mean over R repeats has variance s^2 p (1-p) / R.
    x = gradient(shape, count, scale, seed % 1000)
    limit = oracle.bound(x, clip)
    expected = np.clip(x.astype(np.float64), -float(limit), float(limit))
    s = float(limit) * shared  # another worker may have had the larger gradient
    codec = get("ternary", clip=clip, scale=s)
    total = np.zeros(count)
    for step in range(REPEATS):
        total += decode(encode(codec, x, counter.key(seed, step))).astype(np.float64)
    if s < float(ternary.TINY_SCALE):
        assert not total.any()
        return
    p = np.abs(expected) / s
    sigma = s * np.sqrt(p * (1 - p) / REPEATS)
    error = np.abs(total / REPEATS - expected)
    # Six sigma, and a few counts where p is so small that the normal law does not hold; fp32 rounds at 1e-6.
    assert (error <= 6 * sigma + 6 * s / REPEATS + 1e-6 * s).all()
    # Over the whole tensor a bias of every element in one direction would show far sooner.
    signed = float(np.sum((total / REPEATS - expected) * np.sign(expected)))
    assert abs(signed) <= 6 * float(np.sqrt(np.sum(sigma**2))) + 6 * s / REPEATS + 1e-6 * s * count


@given(
    hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(-(2.0**60), 2.0**60, width=32)),
    st.sampled_from([None, 0.5, 2.5]),
    st.integers(0, 2**40),
)
def test_every_decoded_value_is_zero_or_the_scaler_with_the_sign_of_its_element(x, clip, seed):
    codec = get("ternary", clip=clip)
    decoded = decode(encode(codec, x, counter.key(seed, 0)))
    scale = oracle.bound(x, clip)
    assert set(np.abs(decoded).tolist()) <= {0.0, float(scale)}
    assert ((decoded == 0) | (np.sign(decoded) == np.sign(x))).all()


def test_an_empty_or_vanishing_tensor_is_sent_as_zeros():
    assert moments_of(np.empty(0, np.float32)) == (0, 0)
    for x in (np.zeros(20, np.float32), np.full(20, 1e-35, np.float32), np.full(20, 1e-40, np.float32)):
        assert not decode(encode(get("ternary"), x)).any()


def test_ternarize_is_the_plain_formula():
    rng = np.random.default_rng(5)
    x = rng.standard_normal(5000).astype(np.float32)
    limit, scale = np.float32(1.5), np.float32(2.25)
    nonzero, negative = ternary.ternarize(x, limit, scale, counter.key(3, 1, 4), 1_000)
    codes = oracle.codes(x, limit, scale, oracle.draws(3, 1, 4, 1_000, x.size))
    assert np.array_equal(nonzero, codes != 0) and np.array_equal(negative, codes < 0)


@pytest.mark.parametrize("label", labels())
def test_an_element_is_sent_only_where_its_draw_is_below_its_share_of_the_scaler(label):
    """Equal is not below: the share of k / 2**24 has k draws of 2**24 below it."""
    n = 1000
    share = counter.uniform24(counter.key(0, 0), 0, n).astype(np.float32) * np.float32(2.0**-24)
    codec = Ternary(scale=1.0)
    for x, sent in ((share, 0), (np.nextafter(share, np.float32(2)), n)):
        assert np.count_nonzero(decoded(label, codec, encoded(label, codec, x), n)) == sent
