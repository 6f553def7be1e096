"""LARS by hand: one step in float64, momentum, Nesterov's look ahead, and where the rate stands."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paceline import LARS
from paceline.training.optimizers import LARS_VARIANTS

ETA = 0.02


def stepped(weight: Tensor, gradients: list[Tensor], **options: Any) -> Tensor:
    """The weight after one step for each gradient."""
    parameter = nn.Parameter(weight.clone())
    optimizer = LARS([parameter], **{"trust_coefficient": ETA, "exclude": "none", **options})
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=25)
@given(st.integers(0, 99), st.floats(0.01, 1.0), st.floats(0, 0.1))
def test_the_paper_s_first_step(seed: int, lr: float, decay: float) -> None:
    w, g = drawn(seed, 5, 3), drawn(seed + 1, 5, 3)
    ratio = ETA * w.norm() / (g.norm() + decay * w.norm())
    torch.testing.assert_close(stepped(w, [g], lr=lr, weight_decay=decay), w - lr * ratio * (g + decay * w))


def test_momentum_adds_what_was() -> None:
    w, first, second = (drawn(seed, 4, 4) for seed in range(3))
    v = 0.5 * ETA * w.norm() / first.norm() * first
    after = w - v
    v = 0.9 * v + 0.5 * ETA * after.norm() / second.norm() * second
    torch.testing.assert_close(stepped(w, [first, second], lr=0.5, momentum=0.9), after - v)


def test_nesterov_looks_one_step_ahead() -> None:
    w, g = drawn(1, 4, 4), drawn(2, 4, 4)
    plain = w - stepped(w, [g], lr=0.5, momentum=0.9)
    torch.testing.assert_close(w - stepped(w, [g], lr=0.5, momentum=0.9, variant="joint", nesterov=True), 1.9 * plain)


def test_an_excluded_tensor_is_momentum_sgd_without_decay() -> None:
    w, gradients = drawn(1, 7), [drawn(seed, 7) for seed in (2, 3)]
    parameter = nn.Parameter(w.clone())
    sgd = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        sgd.step()
    torch.testing.assert_close(
        stepped(w, gradients, lr=0.1, momentum=0.9, weight_decay=0.5, exclude="biases-and-norms"), parameter.detach()
    )


@pytest.mark.parametrize("variant", LARS_VARIANTS)
def test_with_a_constant_rate_and_no_decay_every_variant_is_the_same(variant: str) -> None:
    w, gradients = drawn(1, 6, 2), [drawn(seed, 6, 2) for seed in range(2, 6)]
    torch.testing.assert_close(
        stepped(w, gradients, lr=0.1, variant=variant, eps=0.0), stepped(w, gradients, lr=0.1), rtol=1e-12, atol=0
    )


def test_a_larger_gradient_is_no_larger_step() -> None:
    """The ratio takes its length away, without decay entirely."""
    w, g = drawn(1, 6, 2), drawn(2, 6, 2)
    torch.testing.assert_close(stepped(w, [g], lr=0.1), stepped(w, [1e6 * g], lr=0.1))
