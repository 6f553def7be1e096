"""Lasso over single weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.slimming.element_lasso import ElementLasso


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.Flatten(), nn.Linear(12, 2))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        x = torch.randn(8, 2, 6, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(x) - x.mean((1, 2, 3))[:, None]).square().mean().backward()
        optimizer.step()


def test_one_step_is_soft_thresholding_in_the_layers_scale() -> None:
    model = network()
    before = copy.deepcopy(model)
    lasso = ElementLasso(torch.optim.SGD(model.parameters(), lr=0.5), model, 1.2)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    lasso.step()
    for place in (0, 2):
        old = before[place].weight
        pulled = old.sign() * (old.abs() - 0.5 * 1.2 * old.abs().mean()).clamp(min=0)
        assert torch.allclose(model[place].weight, pulled, atol=1e-7)
        zeros = int((model[place].weight == 0).sum())
        assert 0.1 < zeros / old.numel() < 0.9 and lasso.sparsity()[str(place)] == pytest.approx(zeros / old.numel())
    assert torch.equal(model[4].weight, before[4].weight), "not a convolution"


def test_zeros_are_held_while_the_rest_trains_on() -> None:
    model = network()
    lasso = ElementLasso(torch.optim.Adam(model.parameters(), lr=0.02), model, 0.5, ["0"])
    train(model, lasso, 30)
    zero = model[0].weight == 0
    assert zero.any() and not zero.all()
    lasso.hold()
    held = model[0].weight.detach().clone()
    train(model, lasso, 5, 30)
    assert torch.equal(model[0].weight == 0, zero) and not torch.equal(model[0].weight, held)


@pytest.mark.parametrize("held_from", [4, 8])
def test_a_run_resumes_bit_for_bit(held_from: int) -> None:
    """From step 6, with the penalty on or with zeros held already."""

    def start() -> tuple[nn.Module, ElementLasso]:
        model = network()
        return model, ElementLasso(torch.optim.Adam(model.parameters(), lr=0.02), model, 5.0)

    def run(model: nn.Module, lasso: ElementLasso, steps: range) -> None:
        for step in steps:
            if step == held_from:
                lasso.hold()
            train(model, lasso, 1, step)

    whole, lasso = start()
    run(whole, lasso, range(6))
    saved: tuple[dict[str, Tensor], dict[str, object]] = copy.deepcopy((whole.state_dict(), lasso.state_dict()))
    run(whole, lasso, range(6, 12))
    again = network()
    with torch.no_grad():
        again[0].weight.mul_(3)  # other units, which the saved state replaces
    resumed = ElementLasso(torch.optim.Adam(again.parameters(), lr=0.5), again, 9.0)
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    run(again, resumed, range(6, 12))
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), again.state_dict().values(), strict=True))
    assert lasso.sparsity()["0"] > 0


def test_layers_are_checked() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UserError, match="unknown layer '7'"):
        ElementLasso(optimizer, model, 1.0, ["7"])
    with pytest.raises(UserError, match="1 has no weight"):
        ElementLasso(optimizer, model, 1.0, ["1"])
    with pytest.raises(UserError, match="no layer to make sparse"):
        ElementLasso(optimizer, nn.Sequential(nn.Linear(2, 2)), 1.0)
