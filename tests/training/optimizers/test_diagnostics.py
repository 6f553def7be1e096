"""Trust ratios over a run: those of the norms, each tensor apart, and rows of even distance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import paceline
from layerwise_toys import BOTH, PATHS, make, network, train
from paceline.training.optimizers import diagnostics
from paceline.training.optimizers.diagnostics import Diagnostics


@BOTH
@PATHS
def test_diagnostics_are_the_norms_and_ratios(kind: str, foreach: bool | None) -> None:
    model = network()
    optimizer = make(kind, model.named_parameters(), foreach=foreach, diagnostics_every=3)
    norms = []
    for step in range(4):
        norms.append({name: float(p.detach().norm()) for name, p in model.named_parameters()})
        train(model, optimizer, step, step + 1)
    d = optimizer.diagnostics
    assert d.steps.tolist() == [1, 2, 3, 4] and sorted(d.names) == sorted(norms[0])
    assert d.weight_norm.shape == d.trust_ratio.shape == d.update_norm.shape == (4, 6)
    expected = np.array([[norm[name] for name in d.names] for norm in norms])
    np.testing.assert_allclose(d.weight_norm, expected, rtol=1e-6)
    out = [name in optimizer.excluded() for name in d.names]
    assert (d.trust_ratio[:, out] == 1).all()
    decay, coefficient = (0.01, 0.001) if kind == "LARS" else (0.0, 1.0)
    ratio = coefficient * d.weight_norm / (d.update_norm + decay * d.weight_norm)
    np.testing.assert_allclose(d.trust_ratio[:, ~np.array(out)], ratio[:, ~np.array(out)], rtol=1e-6)
    d.clear()
    assert d.steps.size == 0


def test_diagnostics_keep_every_tensor_apart() -> None:
    a, b = (nn.Parameter(torch.full((4,), value)) for value in (2.0, 200.0))
    optimizer = paceline.LARS([("a", a), ("b", b)], lr=0.0, diagnostics_every=2)
    for gradients in ("a", "b", "ab", "a"):
        for name, p in (("a", a), ("b", b)):
            p.grad = torch.ones(4) if name in gradients else None
        optimizer.step()
    d = optimizer.diagnostics
    assert d.names == ["a", "b"] and d.steps.tolist() == [1, 2, 3, 4]
    np.testing.assert_array_equal(d.weight_norm, [[4, np.nan], [np.nan, 400], [4, 400], [4, np.nan]])


def test_a_long_run_keeps_rows_of_even_distance_also_when_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "KEPT", 10)

    def steps(kept: Diagnostics, first: int, last: int) -> Diagnostics:
        for step in range(first, last):
            kept.record(["a", "b"], torch.full((3, 2), float(step)))
        return kept

    whole, half = steps(Diagnostics(3), 0, 50), steps(Diagnostics(3), 0, 17)
    rest = Diagnostics(7)
    rest.load_state_dict(half.state_dict())
    steps(rest, 17, 50)
    assert whole.steps.tolist() == rest.steps.tolist() == list(range(1, 51, 8))
    np.testing.assert_array_equal(whole.trust_ratio, rest.trust_ratio)
    assert rest.trust_ratio[:, 0].tolist() == list(range(0, 50, 8))


def test_nothing_recorded_is_empty() -> None:
    empty = Diagnostics(3)
    assert empty.steps.shape == (0,) and empty.trust_ratio.shape == empty.weight_norm.shape == (0, 0)
    assert empty.state_dict()["seen"] == 0


@given(st.integers(1, 7), st.integers(0, 25))
def test_every_row_comes_to_the_host_whatever_the_distance_of_transfers(every: int, count: int) -> None:
    kept = Diagnostics(every)
    for step in range(count):
        kept.record(["a"], torch.tensor([[1.0 * step], [2.0 * step], [3.0 * step]]))
    assert kept.steps.tolist() == list(range(1, count + 1))
    assert kept.trust_ratio[:, :1].ravel().tolist() == [1.0 * s for s in range(count)]
    assert kept.update_norm[:, :1].ravel().tolist() == [3.0 * s for s in range(count)]
    history = kept.history
    assert history.names == (("a",) if count else ()) and (history.steps == kept.steps).all()


def test_a_tensor_that_comes_later_has_no_number_before() -> None:
    kept = Diagnostics(2)
    kept.record(["a"], torch.ones(3, 1))
    kept.record(["b", "a"], torch.tensor([[2.0, 1.0]] * 3))
    assert kept.names == ["a", "b"]
    np.testing.assert_array_equal(kept.weight_norm, [[1, np.nan], [1, 2]])
    kept.clear()
    kept.record(["b"], torch.ones(3, 1))
    assert kept.steps.tolist() == [3] and np.isnan(kept.trust_ratio[0, 0])
