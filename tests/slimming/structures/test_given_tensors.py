"""Whole tensors that a smaller module is given lose what it has no use for; narrow ones are unchanged."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.given_tensors import NarrowInput, NarrowInputs, arguments, narrows_states


def test_an_argument_of_several_blocks_loses_the_same_of_each() -> None:
    narrow = NarrowInput(0, 3, (0, 2))
    assert narrow.of(torch.arange(6)).tolist() == [0, 2, 3, 5]
    layer = nn.Bilinear(2, 2, 1)
    layer.register_forward_pre_hook(NarrowInputs({"0": NarrowInput(1, 3, (0, 2))}), with_kwargs=True)
    x, y = torch.randn(4, 3), torch.randn(4, 2)
    assert torch.equal(layer(x, y), nn.Bilinear.forward(layer, x[:, [0, 2]], y))
    assert arguments(layer, (x, y), [""]) == {"": {"0": (4, 2), "1": (4, 2)}}


def test_states_of_both_directions_are_narrowed_and_narrow_ones_are_taken_back() -> None:
    layer = nn.GRU(3, 2, bidirectional=True)
    narrows_states(layer, [4], [[torch.tensor([0, 3]), torch.tensor([1, 2])]])
    x, state = torch.randn(5, 1, 3), torch.randn(2, 1, 4)
    narrow = torch.stack([state[0][:, [0, 3]], state[1][:, [1, 2]]])
    assert torch.equal(layer(x, state)[0], layer(x, hx=narrow)[0])


def test_a_plan_with_narrow_inputs_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = SlimPlan({("a.weight", 0): (0,)}, {}, {"a.weight": (2, 3)}, inputs={"a": {"bias": NarrowInput(0, 2, (1,))}})
    plan.save(tmp_path / "plan.json")
    assert SlimPlan.load(tmp_path / "plan.json") == plan
