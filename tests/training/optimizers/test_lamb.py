"""LAMB by hand: one step in float64, the bounds of the ratio, and the clip of all gradients together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paceline import LAMB
from paceline.errors import UserError

EPS = 1e-6


def stepped(weights: list[Tensor], gradients: list[Tensor], **options: Any) -> list[Tensor]:
    """The weights after one step."""
    parameters = [nn.Parameter(weight.clone()) for weight in weights]
    optimizer = LAMB(parameters, **{"lr": 0.1, "exclude": "none", "weight_decay": 0.0, **options})
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    optimizer.step()
    return [parameter.detach() for parameter in parameters]


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def first_direction(weight: Tensor, gradient: Tensor, decay: float = 0.0) -> Tensor:
    """Corrected for their bias, the first moments are the gradient and its square."""
    return gradient / (gradient.abs() + EPS) + decay * weight


@settings(max_examples=25)
@given(st.integers(0, 99), st.floats(0.01, 1.0), st.floats(0, 0.1))
def test_the_paper_s_first_step(seed: int, lr: float, decay: float) -> None:
    w, g = drawn(seed, 5, 3), drawn(seed + 1, 5, 3)
    u = first_direction(w, g, decay)
    (after,) = stepped([w], [g], lr=lr, weight_decay=decay)
    torch.testing.assert_close(after, w - lr * w.norm() / u.norm() * u)


def test_without_bias_correction_the_first_step_is_shorter_before_the_ratio() -> None:
    w, g = drawn(1, 5, 3), drawn(2, 5, 3)
    u = 0.1 * g / ((0.001 * g**2).sqrt() + EPS)
    (after,) = stepped([w], [g], variant="paper-v3")
    torch.testing.assert_close(after, w - 0.1 * w.norm() / u.norm() * u)


@pytest.mark.parametrize("bounds", [(0.0, 0.5), (10.0, 20.0), (0.0, 100.0)])
def test_bounds_hold_the_length_of_the_weights(bounds: tuple[float, float]) -> None:
    w, g = drawn(1, 5, 3), drawn(2, 5, 3)
    u = first_direction(w, g)
    (after,) = stepped([w], [g], bounds=bounds)
    torch.testing.assert_close(after, w - 0.1 * w.norm().clamp(*bounds) / u.norm() * u)


def test_the_clip_is_of_all_tensors_together() -> None:
    """The moments of a clipped gradient are those of the shorter one, and eps weighs more beside them."""
    weights, gradients = [drawn(1, 4), drawn(2, 3, 2)], [3.0 * drawn(3, 4), 3.0 * drawn(4, 3, 2)]
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    clipped = stepped(weights, gradients, max_grad_norm=1e-3, eps=1e-2)
    shorter = stepped(weights, [1e-3 * g / norm for g in gradients], eps=1e-2)
    for a, b in zip(clipped, shorter, strict=True):
        torch.testing.assert_close(a, b)
    whole = stepped(weights, gradients, max_grad_norm=2 * float(norm), eps=1e-2)
    for a, b in zip(whole, stepped(weights, gradients, eps=1e-2), strict=True):
        torch.testing.assert_close(a, b)


def test_the_variant_says_whether_gradients_are_clipped() -> None:
    p = [nn.Parameter(torch.ones(2))]
    assert LAMB(p).max_grad_norm is None and LAMB(p, variant="nvlamb").max_grad_norm == 1.0
    assert LAMB(p, variant="nvlamb", max_grad_norm=None).max_grad_norm is None


@pytest.mark.parametrize(
    "options",
    [{"max_grad_norm": 0.0}, {"max_grad_norm": "none"}, {"bounds": (2.0, 1.0)}, {"bounds": (-1.0, 1.0)}, {"bounds": 3.0}],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"LAMB: {next(iter(options))}=.*; legal: "):
        LAMB([nn.Parameter(torch.ones(2))], **options)
