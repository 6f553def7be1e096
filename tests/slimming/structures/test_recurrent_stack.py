"""Recurrent layers with widths of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from paceline.slimming.export.exporting import silent
from paceline.slimming.structures.recurrent_stack import RecurrentStack, stacked
from paceline.slimming.structures.shrink import shrunk
from paceline.slimming.structures.tracing import structures_of


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


class Stepper(nn.Module):
    """Returns its states, to be passed back."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layers = kind(5, 8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, states: Any = None) -> dict[str, Any]:
        out, states = self.layers(x, states)
        return {"out": self.head(out), "states": states}


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_states_leave_a_slimmed_network_in_the_structure_of_the_whole_one(kind: type[nn.RNNBase]) -> None:
    model, x = Stepper(kind).eval(), torch.randn(2, 6, 5)
    found = structures_of(model, (x,))
    first, second = found.layers().values()
    small = shrunk(model, found, {each.number for each in [*first[1::2], *second[1::4]]})
    before, after = model(x)["states"], small(x)["states"]
    assert isinstance(small.layers, RecurrentStack)
    assert tree_map(lambda each: each.shape, after) == tree_map(lambda each: each.shape, before)
    begun = small(x[:, :4])
    assert torch.allclose(small(x[:, 4:], begun["states"])["out"], small(x)["out"][:, 4:], atol=1e-6)
    with silent():
        program = torch.export.export(small, (x,))
    assert torch.allclose(program.module()(x)["out"], small(x)["out"], atol=1e-6)


def test_directions_of_unequal_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="the directions of layer 0 keep 3 and 4 units"):
        stacked(
            nn.GRU(5, 4, bidirectional=True),
            {name: {0: torch.tensor([0, 1, 2, 4, 5, 6, 8, 9, 10])} for name in ("weight_ih_l0", "weight_hh_l0")},
        )
