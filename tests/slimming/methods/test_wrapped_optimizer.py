"""What acts beside the steps of another optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from paceline.errors import UserError
from paceline.slimming.methods.wrapped_optimizer import WrappedOptimizer


class Noted(WrappedOptimizer):
    def before_step(self) -> None:
        self.inner.param_groups[0]["params"][0].grad.add_(1)

    def after_step(self) -> None:
        self.strength += 1


def test_a_wrapper_acts_before_and_after_a_step_and_comes_back() -> None:
    weight = nn.Parameter(torch.zeros(2))
    wrapped = Noted(torch.optim.SGD([weight], lr=0.5), 3.0)
    weight.grad = torch.ones(2)
    wrapped.step()
    assert weight.tolist() == [-1.0, -1.0] and wrapped.strength == 4.0 and wrapped.rate == 0.5
    again = Noted(torch.optim.SGD([weight], lr=0.1), 1.0)
    again.load_state_dict(wrapped.state_dict())
    assert again.strength == 4.0 and again.param_groups[0]["lr"] == 0.5
    stock: dict[str, Any] = torch.optim.SGD([weight], lr=0.2).state_dict()
    again.load_state_dict(stock)
    assert again.strength == 4.0 and again.rate == 0.2


@pytest.mark.parametrize("strength", [-1.0, float("nan"), float("inf")])
def test_a_strength_is_a_number_from_zero(strength: float) -> None:
    with pytest.raises(UserError, match="a strength of "):
        Noted(torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.5), strength)
