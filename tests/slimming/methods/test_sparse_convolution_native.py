"""The C++ kernel of sparse convolution against sums in double precision, at every instruction set; without torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from every_backend import ISAS, Guarded
from paceline.codecs import native

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the extension: make native")
PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))
SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40))
CASES = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 2),
        "groups": st.integers(1, 3),
        "entering": st.integers(1, 5),
        "leaving": st.integers(1, 5),
        "size": SIZES,
        "kernel": st.tuples(st.integers(1, 5), st.integers(1, 5)),
        "stride": PAIRS,
        "padding": st.tuples(st.integers(0, 4), st.integers(0, 4)),
        "dilation": PAIRS,
        "sparsity": st.sampled_from([0.0, 0.5, 0.9, 1.0]),
        "relu": st.booleans(),
        "threads": st.integers(1, 3),
        "seed": st.integers(0, 99),
    }
)
PLAIN = {
    "batch": 1, "groups": 1, "entering": 3, "leaving": 4, "kernel": (3, 3), "stride": (1, 1), "padding": (1, 1),
    "dilation": (1, 1), "sparsity": 0.5, "relu": False, "threads": 1, "seed": 0,
}  # fmt: skip


@contextmanager
def level(isa: str) -> Iterator[None]:
    from paceline import _native

    if isa not in _native.isas():
        pytest.skip(f"needs a processor with {isa}")
    before = _native.isa()
    _native.set_isa(isa)
    try:
        yield
    finally:
        _native.set_isa(before)


def guarded(array: np.ndarray) -> np.ndarray:
    """The same, in front of memory that traps."""
    room = Guarded(array.nbytes).array.view(array.dtype).reshape(array.shape)
    room[:] = array
    return room


def weights(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(case["seed"])
    shape = (case["leaving"] * case["groups"], case["entering"], *case["kernel"])
    weight = random.standard_normal(shape, np.float32) * (random.random(shape) >= case["sparsity"])
    weight[random.random(len(weight)) < 0.2] = 0  # whole rows
    return weight.astype(np.float32), random.standard_normal(shape[0], np.float32)


def made(case: dict[str, Any]) -> Any:
    from paceline import _native

    weight, bias = weights(case)
    flat = weight.reshape(len(weight), -1)
    first = np.concatenate([[0], np.cumsum((flat != 0).sum(1))]).astype(np.int32)
    taps = np.nonzero(flat)[1].astype(np.int32)
    window = [case["entering"] * case["groups"], len(weight), case["groups"]]
    for name in ("kernel", "stride", "padding", "dilation"):
        window += case[name]
    return _native.SparseConvolution(window, case["relu"], first, taps, flat[flat != 0], bias)


def expected(case: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """One product after the other."""
    weight, bias = weights(case)
    (rows, columns), (down, right), (top, left) = case["kernel"], case["stride"], case["padding"]
    apart, beside = case["dilation"]
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, top), (left, left)))
    height = (padded.shape[2] - (rows - 1) * apart - 1) // down + 1
    width = (padded.shape[3] - (columns - 1) * beside - 1) // right + 1
    out = np.zeros((len(x), len(weight), height, width)) + bias[:, None, None]
    entering = case["entering"]
    for place, row, column in np.ndindex(entering, rows, columns):
        part = padded[:, :, row * apart :: down, column * beside :: right][:, :, :height, :width]
        for leaving in range(len(weight)):
            group = leaving // case["leaving"]
            out[:, leaving] += weight[leaving, place, row, column] * part[:, group * entering + place]
    return np.maximum(out, 0) if case["relu"] else out


def fits(case: dict[str, Any]) -> bool:
    each = zip(case["size"], case["padding"], case["kernel"], case["dilation"], strict=True)
    return all(size + 2 * pad >= (kernel - 1) * step + 1 for size, pad, kernel, step in each)


@pytest.mark.parametrize("isa", ISAS)
@given(case=CASES.filter(fits))
@example(case={**PLAIN, "size": (7, 7)})
@example(case={**PLAIN, "size": (14, 14), "threads": 3})
@example(case={**PLAIN, "size": (30, 17), "batch": 2})
@example(case={**PLAIN, "size": (57, 56), "stride": (2, 2)})
@example(case={**PLAIN, "size": (9, 40), "sparsity": 1.0})
@settings(max_examples=40, deadline=None)
def test_native_is_a_convolution_and_touches_nothing_else(isa: str, case: dict[str, Any]) -> None:
    with level(isa):
        shape = (case["batch"], case["entering"] * case["groups"], *case["size"])
        x = guarded(np.random.default_rng(case["seed"] + 1).standard_normal(shape, np.float32))
        right = expected(case, x)
        out = guarded(np.full(right.shape, np.nan, np.float32))
        made(case).run(x, out, case["threads"])
        assert np.abs(out - right).max(initial=0) <= 1e-5 * max(1.0, np.abs(right).max(initial=0))


@pytest.mark.parametrize("isa", ISAS)
def test_native_bits_are_the_same_on_any_threads_and_in_blocks(isa: str) -> None:
    """A layer of several blocks of channels: sums go on from block to block."""
    case = {**PLAIN, "entering": 150, "leaving": 24, "size": (15, 20), "sparsity": 0.7}
    x = np.random.default_rng(0).standard_normal((2, 150, 15, 20), np.float32)
    with level(isa):
        kernel, outs = made(case), []
        for threads in (1, 2, 5):
            outs.append(np.full((2, 24, 15, 20), np.nan, np.float32))
            kernel.run(x, outs[-1], threads)
    assert outs[0].tobytes() == outs[1].tobytes() == outs[2].tobytes()
    right = expected(case, x)
    assert np.abs(outs[0] - right).max() <= 1e-5 * np.abs(right).max()


def test_native_serves_another_size_and_level_with_the_same_weights() -> None:
    from paceline import _native

    kernel, before = made({**PLAIN}), _native.isa()
    try:
        for isa in _native.isas():
            _native.set_isa(isa)
            for size in ((5, 6), (20, 33)):
                x = np.random.default_rng(1).standard_normal((1, 3, *size), np.float32)
                out = np.full((1, 4, *size), np.nan, np.float32)
                kernel.run(x, out, 1)
                assert np.abs(out - expected({**PLAIN, "size": size}, x)).max() < 1e-4
    finally:
        _native.set_isa(before)


def test_native_refuses_what_is_no_convolution() -> None:
    from paceline import _native

    kernel = made({**PLAIN})
    x = np.zeros((1, 3, 5, 5), np.float32)
    for out in (np.zeros((1, 4, 5, 4), np.float32), np.zeros((2, 4, 5, 5), np.float32)):
        with pytest.raises(ValueError, match="an output of another shape"):
            kernel.run(x, out, 1)
    with pytest.raises(ValueError, match="an input of other channels"):
        kernel.run(x[:, :2].copy(), np.zeros((1, 4, 5, 5), np.float32), 1)
    with pytest.raises(ValueError, match="larger than the padded input"):
        made({**PLAIN, "padding": (0, 0)}).out_size(2, 0)
    window, bias = [2, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1], np.zeros(1, np.float32)
    for first, taps in (([0, 2], [1, 0]), ([0, 2], [0, 2]), ([1, 2], [0, 1]), ([0, 1], [0, 1]), ([0], [])):
        with pytest.raises(ValueError, match=r"in order|one row"):
            values = np.ones(len(taps), np.float32)
            _native.SparseConvolution(window, False, np.array(first, np.int32), np.array(taps, np.int32), values, bias)
    with pytest.raises(ValueError, match="do not divide"):
        made({**PLAIN})
        _native.SparseConvolution(
            [3, 1, 2, *window[3:]], False, np.zeros(2, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32), bias
        )


def test_native_keeps_nan_and_infinity() -> None:
    """Where a weight meets them, as a dense layer would; a ReLU keeps NaN."""
    case = {**PLAIN, "entering": 1, "leaving": 1, "kernel": (1, 1), "padding": (0, 0), "sparsity": 0.0, "relu": True}
    for seed in range(9):
        weight, _ = weights({**case, "seed": seed})
        if weight.any():
            break
    x = np.zeros((1, 1, 3, 21), np.float32)
    x[0, 0, 1, 20] = np.nan
    out = np.zeros_like(x)
    made({**case, "seed": seed}).run(x, out, 1)
    assert np.isnan(out[0, 0, 1, 20]) and np.isnan(out).sum() == 1
