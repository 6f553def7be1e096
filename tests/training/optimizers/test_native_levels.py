"""LARS's and LAMB's kernels give the same bits at every instruction set, without torch: an emulated processor has none."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.codecs import native

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the extension: make native")
SIZES = [1, 15, 16, 17, 1000, 70_001]


def steps(isa: str) -> list[bytes]:
    """Sums and results of both optimizers over tensors of all sizes, of which some numbers are zero or denormal."""
    from paceline import _native

    rng = np.random.default_rng(5)
    w, g, m = ([(rng.standard_t(3, n) * 1e-2).astype(np.float32) for n in SIZES] for _ in range(3))
    v = [np.square(rng.standard_normal(n) * 1e-3).astype(np.float32) for n in SIZES]
    for tensor in (*g, *v):
        tensor[rng.random(tensor.size) < 0.05] = 0
        tensor[rng.random(tensor.size) < 0.05] = 1e-42
    at_w, at_g, at_m, at_v = ([tensor.ctypes.data for tensor in tensors] for tensors in (w, g, m, v))
    each = [np.linspace(low, high, len(SIZES), dtype=np.float32) for low, high in ((0.5, 2), (1, 1.5), (1e-3, 1e-1))]
    lars, lamb, squares = np.empty((2, len(SIZES))), np.empty((3, len(SIZES))), np.empty(len(SIZES))
    shared = (*each[:2], 0.9, 0.999, 1e-6, 0.01, 1.0)
    _native.set_isa(isa)
    try:
        _native.squares(at_w, SIZES, squares, 1)
        _native.lars_sums(at_w, at_g, SIZES, 1.5, 1e-4, lars, 2)
        _native.lars_step(at_w, at_g, at_m, SIZES, each[0], 0.1, 1.5, 1e-4, 0.9, True, 1)
        _native.lamb_sums(at_w, at_g, at_m, at_v, SIZES, *shared, lamb, 2)
        _native.lamb_step(at_w, at_g, at_m, at_v, SIZES, *shared, each[2], 1)
    finally:
        _native.set_isa(_native.isas()[-1])
    return [a.tobytes() for a in (*w, *m, *v, lars, lamb, squares)]


def test_every_instruction_set_gives_the_same_bits() -> None:
    from paceline import _native

    expected = steps("baseline")
    assert np.isfinite(np.frombuffer(b"".join(expected[:-3]), np.float32)).all()
    for isa in _native.isas():
        assert steps(isa) == expected, isa
