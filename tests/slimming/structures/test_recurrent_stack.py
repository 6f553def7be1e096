"""Recurrent layers with widths of their own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.slimming.structures.recurrent_stack import RecurrentStack, stacked


def test_a_stack_computes_what_one_module_does_and_goes_on_from_its_states() -> None:
    whole = nn.LSTM(5, 7, 3, batch_first=True).eval()
    layers = []
    for number in range(3):
        layer = nn.LSTM(5 if number == 0 else 7, 7, batch_first=True)
        for name, tensor in layer.named_parameters():
            tensor.data.copy_(getattr(whole, name.replace("_l0", f"_l{number}")))
        layers.append(layer)
    stack = RecurrentStack(layers, 0.5).eval()
    x = torch.randn(2, 6, 5)
    assert torch.allclose(stack(x)[0], whole(x)[0], atol=1e-6)
    first, states = stack(x[:, :4])
    assert torch.allclose(torch.cat([first, stack(x[:, 4:], states)[0]], 1), whole(x)[0], atol=1e-6)


def test_directions_of_unequal_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="the directions of layer 0 keep 3 and 4 units"):
        stacked(
            nn.GRU(5, 4, bidirectional=True),
            {name: {0: torch.tensor([0, 1, 2, 4, 5, 6, 8, 9, 10])} for name in ("weight_ih_l0", "weight_hh_l0")},
        )
