"""Zeros by a schedule."""

from __future__ import annotations

import copy

import torch
from torch import nn

from paceline.slimming.methods.sparse_path import SparsePath
from paceline.slimming.structures.replacements import replaced

STEPS = 40


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(16, 3))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        x = torch.randn(8, 2, 6, 6, generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(model(x), (x.mean((1, 2, 3)) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def path_of(model: nn.Module) -> SparsePath:
    return SparsePath(torch.optim.SGD(model.parameters(), 0.05, 0.9), model, {"2": 0.75}, STEPS)


def zeros(model: nn.Sequential) -> float:
    """Share of zero weights of the layer ``2``."""
    return float((model.get_submodule("2").get_parameter("weight") == 0).float().mean())


def test_a_layer_becomes_as_sparse_as_wanted_and_others_stay() -> None:
    model = network()
    path = path_of(model)
    train(model, path, 5)
    assert zeros(model) < 0.6
    train(model, path, STEPS - 5, 5)
    assert abs(zeros(model) - 0.75) < 0.02 and int((model[0].weight == 0).sum()) == 0  # type: ignore[index]


def test_a_sparse_convolution_keeps_its_zeros_in_training() -> None:
    model = replaced(network(), {"2": {"kind": "sparse", "sparsity": 0.8}})
    zero = model[2].weight == 0  # type: ignore[index]
    train(model, torch.optim.SGD(model.parameters(), 0.05, 0.9, weight_decay=0.1), 10)
    assert torch.equal(model[2].weight == 0, zero) and 0.75 < float(zero.float().mean()) < 0.85  # type: ignore[index]


def test_a_path_goes_on_bit_for_bit() -> None:
    model = network()
    path = path_of(model)
    train(model, path, 13)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(path.state_dict())
    train(model, path, 10, 13)
    again = network()
    again.load_state_dict(weights)
    other = path_of(again)
    other.load_state_dict(state)
    train(again, other, 10, 13)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
