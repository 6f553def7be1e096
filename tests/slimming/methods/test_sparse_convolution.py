"""Sparse convolutions as a module, an operator of torch and a replacement of a plan."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.errors import UserError
from paceline.slimming.methods.sparse_convolution import SparseConv2d, replacement, sparse_convolution
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.shrink import load


def dense(**settings: Any) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(4, 6, 3, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"bias": False},
        {"padding": "same", "dilation": 2},
        {"padding": "valid", "stride": 2},
        {"groups": 2, "padding": (0, 2)},
    ],
)
def test_a_sparse_convolution_is_the_dense_one_of_the_same_weights(settings: dict[str, Any]) -> None:
    old = dense(**settings)
    new = replacement(copy.deepcopy(old), {"kind": "sparse", "sparsity": 0.7}).eval()
    assert isinstance(new, SparseConv2d) and float((new.weight == 0).float().mean()) == pytest.approx(0.7, abs=0.01)
    assert new.state_dict().keys() == old.state_dict().keys()
    old.load_state_dict(new.state_dict())
    x = torch.randn(2, 4, 9, 13)
    assert torch.allclose(new(x), old(x), atol=1e-6)
    assert torch.allclose(new(x[0]), old(x[0]), atol=1e-6), "without a batch"
    assert torch.allclose(new(x.double().float().transpose(2, 3)), old(x.transpose(2, 3)), atol=1e-6), "not contiguous"
    assert torch.equal(new.train()(x), old(x))


def test_changed_weights_are_seen() -> None:
    layer, x = SparseConv2d.of(dense(padding=1)).eval(), torch.randn(1, 4, 5, 5)
    layer(x)
    for change in (layer.weight.mul_, layer.bias.add_):
        with torch.no_grad():
            change(2.0)
        right = nn.functional.conv2d(x, layer.weight, layer.bias, padding=1)
        assert torch.allclose(layer(x), right, atol=1e-5)
    with torch.inference_mode():
        other = torch.zeros_like(layer.weight)
        settings = ((1, 1), (1, 1), (1, 1), 1)
        assert not sparse_convolution(x, other, None, *settings).any()
        other += 1
        assert sparse_convolution(x, other, None, *settings).any()


def test_the_operator_has_gradients_and_traces() -> None:
    layer, x = SparseConv2d.of(dense(stride=2)).eval(), torch.randn(2, 4, 8, 8, requires_grad=True)
    found = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])
    right = torch.autograd.grad(layer.train()(x).square().sum(), [x, *layer.parameters()])
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(found, right, strict=True))
    program = torch.export.export(layer.eval(), (x.detach(),))
    assert [node.target for node in program.graph.nodes if node.op == "call_function"] == [
        torch.ops.paceline.sparse_convolution.default
    ]
    assert torch.equal(program.module()(x), layer(x))
    settings = ((2, 2), (0, 0), (1, 1), 1)
    torch.library.opcheck(
        sparse_convolution, (x.detach(), layer.weight.detach(), None, *settings), test_utils="test_faketensor"
    )


def test_other_types_go_the_dense_way() -> None:
    layer, x = SparseConv2d.of(dense()).double().eval(), torch.randn(1, 4, 5, 5, dtype=torch.float64)
    assert torch.equal(layer(x), nn.functional.conv2d(x, layer.weight, layer.bias))


def test_a_plan_makes_it_of_fresh_code_and_weights_follow(tmp_path: Path) -> None:
    plan = SlimPlan({}, {}, {}, {"0": {"kind": "sparse"}})
    plan.save(tmp_path / "plan.json")
    network = nn.Sequential(dense(padding=1), nn.ReLU()).eval()
    network[0] = replacement(network[0], {"sparsity": 0.5})
    fresh = load(SlimPlan.load(tmp_path / "plan.json"), nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU())).eval()
    fresh.load_state_dict(network.state_dict())
    x = torch.randn(1, 4, 6, 6)
    assert isinstance(fresh[0], SparseConv2d) and torch.equal(fresh(x), network(x))


def test_what_cannot_be_sparse_is_refused() -> None:
    with pytest.raises(UserError, match="in the place of Linear"):
        replacement(nn.Linear(2, 2), {})
    with pytest.raises(UserError, match="padding_mode='reflect'"):
        replacement(dense(padding=1, padding_mode="reflect"), {})
    with pytest.raises(UserError, match="an even kernel"):
        replacement(nn.Conv2d(1, 1, 2, padding="same"), {})
    with pytest.raises(UserError, match=r"a sparsity of 1\.5"):
        replacement(dense(), {"sparsity": 1.5})
