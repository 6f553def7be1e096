"""Newton-Schulz steps: the polynomial of singular values, in either form; FLOPs as torch counts them."""

from __future__ import annotations

import pytest
import torch
from torch.optim._muon import _zeropower_via_newtonschulz
from torch.utils.flop_counter import FlopCounterMode

from paceline.training.optimizers.muon.newton_schulz import COEFFICIENTS, EPS, PRECISIONS, NewtonSchulz

SHAPES = [(24, 24), (16, 64), (64, 16), (16, 64), (9, 24)]


def exact(matrix: torch.Tensor) -> torch.Tensor:
    """The polynomial of each singular value, five times, in fp64."""
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / s.square().sum().sqrt()
    for _ in range(5):
        s = sum(c * s ** (2 * i + 1) for i, c in enumerate(COEFFICIENTS))  # type: ignore[assignment]
    return u @ torch.diag(s) @ v


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 0.05)])
def test_it_is_the_polynomial_of_singular_values(precision: str, tolerance: float) -> None:
    """Also of matrices whose singular values are a thousandth of the largest, the worst for the Gram form."""
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.randn(shape, generator=generator) for shape in SHAPES]
    u, _, v = torch.linalg.svd(torch.randn(16, 64, generator=generator), full_matrices=False)
    matrices.append(u @ torch.diag(torch.logspace(0, -3, 16)) @ v)
    for found, matrix in zip(NewtonSchulz(PRECISIONS[precision]).many(matrices), matrices, strict=True):
        assert float((found.double() - exact(matrix)).abs().max()) < tolerance


def test_bf16_has_the_bits_of_torch() -> None:
    matrices = [torch.randn(shape) for shape in SHAPES]
    for found, matrix in zip(NewtonSchulz().many(matrices), matrices, strict=True):
        assert torch.equal(found, _zeropower_via_newtonschulz(matrix, COEFFICIENTS, 5, EPS))


def test_a_matrix_of_zeros_stays() -> None:
    for precision in ("bf16", "fp32"):
        assert not NewtonSchulz(PRECISIONS[precision]).many([torch.zeros(3, 5)])[0].any()


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_flops_are_those_that_torch_counts(precision: str) -> None:
    work = NewtonSchulz(PRECISIONS[precision])
    with FlopCounterMode(display=False) as counter:
        work.many([torch.ones(shape) for shape in SHAPES])
    assert counter.get_total_flops() == sum(work.flops(*shape) for shape in SHAPES)


def test_the_gram_form_saves_products_of_wide_matrices() -> None:
    """In fp32 alone: 1.5 times fewer FLOPs at four times as many columns, and none from a square."""
    wide, narrow = NewtonSchulz(PRECISIONS["fp32"]), NewtonSchulz()
    assert narrow.flops(768, 3072) / wide.flops(768, 3072) == pytest.approx(1.5)
    assert wide.flops(768, 768) == narrow.flops(768, 768) == 30 * 768**3
