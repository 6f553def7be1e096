"""A new compact network in a network's place."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import paceline
from paceline.errors import UserError
from paceline.models.vision.compact import ConvM
from paceline.models.vision.lenet import lenet5
from paceline.slimming.latency.onnx_nodes import ConvolutionWindow, OnnxNode, seconds
from paceline.slimming.methods.compact_student import removed_by, student, tied, widest, without
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.shrink import load, module_bytes
from paceline.slimming.structures.tracing import structures_of

IMAGE = torch.zeros(1, 1, 28, 28)


def products(model: nn.Module, x: torch.Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(x)
    return counter.get_total_flops() // 2


def test_the_widest_student_computes_about_as_much_as_the_whole_network() -> None:
    whole = lenet5()
    made = widest(whole, (IMAGE,), 8)
    ratio = products(student(made), IMAGE) / products(whole, IMAGE)
    assert 1 <= ratio < 2.2, "widths grow by half a power of two, products by twice as much"
    assert (made["form"], made["channels"], made["classes"]) == ("small", 1, 10)
    assert all(width % 8 == 0 for stage in made["stages"] for block in stage for width in block)
    deep = widest(nn.Sequential(nn.Conv2d(3, 8, 7, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)), images(64), 8)
    assert (deep["form"], deep["channels"], deep["classes"], len(deep["stages"])) == ("deep", 3, 5, 4)


def images(side: int) -> tuple[torch.Tensor]:
    return (torch.zeros(1, 3, side, side),)


@pytest.mark.long
@settings(max_examples=5, deadline=None)
@given(st.data())
def test_a_student_without_some_structures_is_the_widest_one_of_these_widths(data: st.DataObject) -> None:
    made = widest(lenet5(), (IMAGE,), 8)
    structures = tied(structures_of(student(made), (IMAGE,)))
    layers = structures.layers()
    gone: set[int] = set()
    for every in layers.values():
        gone |= {each.number for each in every[data.draw(st.integers(1, len(every))) :]}
    left = without(made, structures, gone)
    assert removed_by(left, structures) == gone
    small = student(left)
    assert len(small(IMAGE)[0]) == 10
    block = next(each for each in small.modules() if isinstance(each, ConvM))
    assert block.plain.out_channels == block.dilated.out_channels == block.deconv.out_channels == left["stages"][0][0][1]


@pytest.mark.long
def test_a_plan_gives_the_student_back_and_the_budget_is_met(tmp_path: Path) -> None:
    whole = lenet5()
    before = copy.deepcopy(whole.state_dict())
    slim = paceline.slim(whole, (IMAGE,), method="compact", budget="size=40kB")
    optimizer = slim.wrap(torch.optim.SGD(whole.parameters(), 0.1), 10)
    functional.cross_entropy(whole(torch.rand(4, 1, 28, 28)), torch.arange(4)).backward()
    alike = copy.deepcopy(whole)
    for one, other in zip(alike.parameters(), whole.parameters(), strict=True):
        one.grad = None if other.grad is None else other.grad.clone()
    torch.optim.SGD(alike.parameters(), 0.1).step()
    optimizer.step()
    assert all((a == b).all() for a, b in zip(alike.parameters(), whole.parameters(), strict=True)), "the teacher trains freely"
    assert any((before[name] != each).any() for name, each in whole.state_dict().items())
    small = slim.shrink()
    assert slim.plan is not None and module_bytes(small) <= 40e3 < module_bytes(whole)
    slim.plan.save(tmp_path / "plan.json")
    again = load(SlimPlan.load(tmp_path / "plan.json"), lenet5())
    again.load_state_dict(small.state_dict())
    x = torch.rand(3, 1, 28, 28)
    assert (again.eval()(x) == small.eval()(x)).all()
    with pytest.raises(UserError, match="plan"):
        load(slim.plan, nn.Sequential(nn.Linear(3, 3)))


@pytest.mark.parametrize(
    ("model", "given_", "says"),
    [
        (nn.Embedding(9, 4), torch.zeros(1, 5, dtype=torch.int64), r"compact takes one batch of images .*int64 of \(1, 5\)"),
        (nn.Flatten(), torch.zeros(1, 1, 8, 8), "images of 16 x 16 pixels and more"),
        (nn.Conv2d(1, 2, 3), IMAGE, r"gives logits \(B, classes\), and this network gives float32 of \(1, 2, 26, 26\)"),
    ],
)
def test_other_networks_are_refused(model: nn.Module, given_: torch.Tensor, says: str) -> None:
    with pytest.raises(UserError, match=says):
        paceline.slim(model, (given_,), method="compact", budget="size=40B").check()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"form": "smal"}, "smal"),
        ({"stem": 0}, "a width of 0"),
        ({"stages": [[[8, 8]]]}, "two for each block of the form small"),
        ({"stages": 3}, "give its channels, classes, stem and stages"),
    ],
)
def test_a_plan_with_wrong_settings_is_refused(changes: dict[str, Any], says: str) -> None:
    made = {**widest(lenet5(), (IMAGE,), 8), **changes}
    with pytest.raises(UserError, match=says):
        load(SlimPlan({}, {}, {}, {"": made}), lenet5())


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 1), st.integers(1, 2))
def test_a_transposed_convolution_is_as_large_as_torch_makes_it(kernel: int, stride: int, extra: int, apart: int) -> None:
    extra = min(extra, max(stride, apart) - 1)
    padding = apart * (kernel - 1) // 2
    x = torch.zeros(1, 4, 9, 7)
    layer = nn.ConvTranspose2d(4, 6, kernel, stride, padding, extra, dilation=apart, bias=False)
    window = ConvolutionWindow((kernel,) * 2, (stride,) * 2, (padding,) * 2, (apart,) * 2, 1, (extra,) * 2)
    node = OnnxNode("conv_transpose", (1, 4, 9, 7), 6, window)
    assert node.size == tuple(layer(x).shape[2:]) and node.products == products(layer, x)


def test_a_transposed_convolution_is_timed() -> None:
    window = ConvolutionWindow((3, 3), (2, 2), (1, 1), (1, 1), 1, (1, 1))
    assert seconds(OnnxNode("conv_transpose", (1, 64, 28, 28), 64, window)) > seconds(
        OnnxNode("conv_transpose", (1, 8, 28, 28), 8, window)
    )
