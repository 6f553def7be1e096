"""Residual branches that go whole."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from paceline.errors import UserError
from paceline.models import build
from paceline.slimming.export.onnx_export import to_onnx
from paceline.slimming.methods.widths import nearest_widths
from paceline.slimming.slim import Slim
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.shrink import differs, load, masked, module_bytes, shrunk, weight_bytes
from paceline.slimming.structures.tracing import structures_of
from slimming_networks import Recurrent, Residual, Transformer, images, tokens


class Basic(nn.Module):
    """A basic block as torchvision's: ReLU and addition in place, any stride, dilation and norm."""

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int, dilation: int, norm: bool, bias: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inner, 3, stride, dilation, dilation, bias=bias)
        self.norm1, self.relu = nn.BatchNorm2d(inner), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(inner, outputs, 3, padding=1, bias=bias)
        self.norm2 = nn.BatchNorm2d(outputs) if norm else nn.Identity()
        self.shortcut = nn.Identity() if stride == 1 and inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        out += self.shortcut(x)
        return self.relu(out)


class Mlp(nn.Module):
    """Pre-norm, of a transformer: two in a row, then another of two at once."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))
        self.into, self.out = (nn.ModuleList(nn.Linear(*sizes) for _ in range(3)) for sizes in ((8, 12), (12, 8)))
        self.last = nn.Linear(8, 3)

    def branch(self, number: int, x: Tensor) -> Tensor:
        inner = functional.gelu(self.into[number](self.norms[number](x)))
        result: Tensor = functional.dropout(self.out[number](inner), 0.1, self.training)
        return result

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.branch(0, x)
        x = self.branch(1, x) + self.branch(2, x)  # one of both must stay
        result: Tensor = self.last(x)
        return result


def settled(model: nn.Module) -> nn.Module:
    """With statistics and weights of norms as after a training."""
    torch.manual_seed(7)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 2.0)  # type: ignore[arg-type]
            nn.init.normal_(module.weight), nn.init.normal_(module.bias)
    return model.eval()


@pytest.mark.long
@settings(max_examples=6, deadline=None)
@given(st.integers(1, 3), st.integers(1, 2), st.booleans(), st.booleans(), st.sampled_from([6, 8]), st.integers(5, 9))
def test_a_block_without_its_branch_computes_what_the_masked_one_does(
    stride: int, dilation: int, norm: bool, bias: bool, outputs: int, side: int
) -> None:
    model = settled(nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), Basic(6, 10, outputs, stride, dilation, norm, bias)))
    model.append(nn.Conv2d(outputs, 4, 1))
    x = (torch.randn(2, 3, side, side + 1),)
    found = structures_of(model, x)
    (branch,) = found.branches
    others = {every[-1].number for every in found.layers().values()}
    gone = others | branch.numbers
    small = shrunk(model, found, gone)
    assert differs(masked(model, found, gone), small, x) < 1e-5
    before, after = (sum(isinstance(each, nn.Conv2d) for each in one.modules()) for one in (model, small))
    assert after == before - 2
    assert weight_bytes(found, gone) >= module_bytes(small)
    same = x[0].clone()
    small.train()(*x).square().sum().backward()
    values = [parameter for name, parameter in small.named_parameters() if name.endswith("value")]
    assert (x[0] == same).all() and len(values) == (norm or bias) and all(bool(each.grad.any()) for each in values)  # type: ignore[union-attr]


@pytest.mark.long
def test_the_branches_of_networks_are_found() -> None:
    names = {branch.name for branch in structures_of(settled(Residual()), images()).branches}
    assert names == {"first"}
    assert {branch.name for branch in structures_of(Mlp().eval(), (torch.randn(2, 5, 8),)).branches} == {"into.0", "into.1"}
    resnet = structures_of(build("resnet-18").eval(), (torch.zeros(1, 3, 64, 64),))
    assert len(resnet.branches) == 8 and all(len(branch.hollow) == 2 and branch.norm for branch in resnet.branches)
    for model, inputs in ((Transformer(), tokens()), (Recurrent(), tokens()), (build("lenet5"), (torch.zeros(1, 1, 28, 28),))):
        assert structures_of(model.eval(), inputs).branches == ()
    bottleneck = structures_of(build("resnet-50").eval(), (torch.zeros(1, 3, 64, 64),))
    assert len(bottleneck.branches) == 16 and all(len(branch.hollow) == 4 for branch in bottleneck.branches)


def test_an_mlp_without_a_branch_computes_what_the_masked_one_does() -> None:
    model, x = Mlp().eval(), (torch.randn(2, 5, 8),)
    found = structures_of(model, x)
    gone = set().union(*(branch.numbers for branch in found.branches))
    small = shrunk(model, found, gone)
    assert differs(masked(model, found, gone), small, x) < 1e-6
    assert sum(isinstance(each, nn.Linear) for each in small.modules()) == 3


def test_a_plan_keeps_it_and_fresh_code_loads_the_weights(tmp_path: Path) -> None:
    model, x = settled(Residual()), images()
    found = structures_of(model, x)
    gone = set(found.branches[0].numbers) | {found.every[0].number}
    plan = SlimPlan.of(found, gone)
    assert plan.removed(found) == gone
    plan.save(tmp_path / "plan.json")
    small, fresh = load(plan, model), load(SlimPlan.load(tmp_path / "plan.json"), Residual())
    fresh.load_state_dict(small.state_dict())
    assert (fresh.eval()(*x) == small.eval()(*x)).all()
    with pytest.raises(UserError, match="another network"):
        load(plan, Mlp())


@pytest.mark.long
def test_an_exported_network_has_no_convolution_of_a_branch_that_is_gone(tmp_path: Path) -> None:
    model, x = settled(nn.Sequential(Basic(3, 8, 3, 1, 1, True, False), nn.Conv2d(3, 2, 1))), (torch.randn(1, 3, 8, 8),)
    found = structures_of(model, x)
    small = shrunk(model, found, found.branches[0].numbers)
    kinds = [node.op_type for node in onnx.load(to_onnx(small.eval(), x, tmp_path / "small.onnx")).graph.node]
    assert kinds.count("Conv") == 1


def test_a_branch_that_matters_little_goes_and_a_plain_layer_keeps_something() -> None:
    model, x = settled(nn.Sequential(nn.Conv2d(3, 8, 1), Basic(8, 32, 8, 1, 1, True, False), nn.Conv2d(8, 2, 1))), images()
    found = structures_of(model, x)
    alike = dict.fromkeys((each.number for each in found.every), 1.0)

    def cost(gone: Any) -> float:
        return weight_bytes(found, gone)

    mild, _ = nearest_widths(found, alike, cost, 0.5 * cost(()), 8)
    assert not found.emptied(mild), "half of its widths are enough"
    tight, left = nearest_widths(found, alike, cost, 0.03 * cost(()), 8)
    assert found.emptied(tight) and left < 0.03 * cost(())
    every, least = nearest_widths(found, alike, cost, 0.0, 8)
    assert least > 0 and differs(masked(model, found, every), shrunk(model, found, every), x) < 1e-5
    nothing = dict(alike) | dict.fromkeys(found.branches[0].numbers, 0.0)
    assert found.emptied(nearest_widths(found, nothing, cost, cost(()), 8)[0]), "what is zero goes at once"


@pytest.mark.long
def test_times_of_a_branch_that_is_gone_are_nothing() -> None:
    model = settled(nn.Sequential(nn.Conv2d(3, 16, 1), Basic(16, 64, 16, 1, 1, True, False), nn.Conv2d(16, 2, 1)))
    slim = Slim(copy.deepcopy(model), (torch.randn(1, 3, 24, 24),), budget="speedup=1.5x")
    (branch,) = slim.structures.branches
    by_layer = slim.times.by_layer(branch.numbers)
    assert by_layer["1.conv1"] == by_layer["1.conv2"] == 0 < by_layer["0"]
    assert slim.times.seconds(branch.numbers) < slim.times.seconds(set(list(branch.numbers)[:-8]))
