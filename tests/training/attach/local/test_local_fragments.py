"""A fragment by itself: its pseudo-gradient, its outer step by the formula, and what it gives the model."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from paceline.strategy import LocalSteps
from paceline.training.attach.local.local_fragments import Fragment
from paceline.training.exchanges.gradients.tensor_layout import Layout, numbered


def fragment(model: nn.Module, **local: float) -> Fragment:
    specs = list(numbered(model.named_parameters()).values())
    steps = LocalSteps(sync_every=4, **local)  # type: ignore[arg-type]
    return Fragment(specs, list(model.parameters()), Layout(specs, ()), steps)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.floats(0.1, 2), st.floats(0, 0.99), st.integers(1, 4))
def test_the_outer_step_is_nesterovs(seed: int, lr: float, momentum: float, steps: int) -> None:
    """b = m b + g; anchor -= lr (g + m b): Douillard et al. 2023, section 2, as PyTorch writes it. In float64."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(3, 5)
    part = fragment(model, outer_lr=lr, outer_momentum=momentum)
    anchor, buffer = part.anchor.detach().double().clone(), torch.zeros(20, dtype=torch.float64)
    for _ in range(steps):
        mean = torch.randn(20, generator=generator)
        part.move(mean.clone())
        buffer = momentum * buffer + mean.double()
        anchor = anchor - lr * (mean.double() + momentum * buffer)
    torch.testing.assert_close(part.anchor.detach().double(), anchor, rtol=1e-5, atol=1e-5)
    assert (part.momentum is None) is (momentum == 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_pseudo_gradients_are_as_wide_as_fp32_at_least(dtype: torch.dtype) -> None:
    model = nn.Linear(3, 5).to(dtype)
    part = fragment(model)
    before = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.25)
    after = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    into = torch.full((23,), 7.0, dtype=part.anchor.dtype)
    out = part.difference(into)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert part.anchor.dtype == out.dtype == wide and out.numel() == 20 and (into[20:] == 7).all()
    torch.testing.assert_close(out, before.to(wide) - after.to(wide), rtol=0, atol=0)
    assert part.named(out)["bias"].shape == (5,)


def test_weights_become_the_anchor_but_for_a_share_of_their_own() -> None:
    model = nn.Linear(3, 5)
    part = fragment(model)
    with torch.no_grad():
        model.weight.fill_(3.0)
        part.anchor.fill_(1.0)
    part.take(0.25)
    assert (model.weight == 1.5).all()
    part.take()
    assert (model.weight == 1).all() and (model.bias == 1).all()
