"""Tables of seconds by widths, and what they answer between and beside them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paceline.slimming.latency import onnx_nodes, width_tables
from paceline.slimming.latency.onnx_nodes import ConvolutionWindow, OnnxNode
from paceline.slimming.latency.width_tables import Part, Ranges, WidthTable, measured_table, parts_of, table_seconds
from paceline.slimming.structures.tracing import structures_of
from slimming_networks import Recurrent, Residual, images, tokens

TABLE = WidthTable(np.array([16, 32]), np.array([16, 64]), np.array([[1.0, 4.0], [2.0, 8.0]]), 1.5)
CONVOLUTION = Part("c.weight", OnnxNode("conv", (1, 32, 8, 8), 64, ConvolutionWindow((3, 3), (1, 1), (1, 1), (1, 1))))


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[OnnxNode]:
    """Nodes that were timed; each takes as many seconds as it has weights."""
    nodes: list[OnnxNode] = []

    def seconds(node: OnnxNode, threads: int) -> float:
        nodes.append(node)
        entering = node.inputs[1] if node.kind == "conv" else node.inputs[-1]
        return float(entering * node.leaving)

    monkeypatch.setattr(width_tables, "seconds", seconds)
    monkeypatch.setattr(onnx_nodes, "block", lambda: 16)
    return nodes


def test_between_widths_time_is_on_a_straight_line() -> None:
    assert TABLE.at(16, 16) == 1 and TABLE.at(32, 64) == 8
    assert TABLE.at(24, 16) == 1.5 and TABLE.at(24, 40) == pytest.approx(3.75)
    assert TABLE.at(8, 16) == 1 and TABLE.at(99, 99) == 8, "the ends hold beyond them"


def test_a_table_is_the_same_after_json() -> None:
    again = WidthTable.from_json(json.loads(json.dumps(TABLE.to_json())))
    assert (again.times == TABLE.times).all() and again.unaligned == 1.5 and again.at(20, 30) == TABLE.at(20, 30)


def test_channels_count_in_blocks_and_odd_ones_take_longer(timed: list[OnnxNode]) -> None:
    assert table_seconds(CONVOLUTION, TABLE, 20, 33) == TABLE.at(32, 48)
    assert table_seconds(CONVOLUTION, TABLE, 21, 33) == 1.5 * TABLE.at(32, 48)
    assert table_seconds(CONVOLUTION, TABLE, 8, 33) == TABLE.at(8, 48), "less than a block is not odd"
    assert table_seconds(CONVOLUTION, TABLE, 0, 33) == 0


def test_only_widths_that_can_be_are_timed(timed: list[OnnxNode]) -> None:
    table = measured_table(CONVOLUTION, Ranges(32, 64), 8)
    assert table.entering.tolist() == [32] and table.leaving.tolist() == [64] and len(timed) == 1
    whole = measured_table(CONVOLUTION, Ranges(0, 0), 8)
    assert whole.entering.tolist() == [4, 8, 16, 32] and whole.leaving.tolist() == [16, 32, 48, 64]
    assert timed[-1].inputs[1] == 31, "odd channels once"


def test_parts_have_the_networks_widths() -> None:
    parts = {part.name: part for part in parts_of(structures_of(Residual(), images()))}
    assert (parts["depthwise"].entering, parts["depthwise"].node.leaving) == (8, 8)
    assert parts["depthwise"].at(4, 4).window == ConvolutionWindow((3, 3), (1, 1), (1, 1), (1, 1), 4)
    assert parts["grouped"].at(4, 8).window == ConvolutionWindow((3, 3), (1, 1), (1, 1), (1, 1), 2)
    assert parts["grouped"].weight_bytes(8, 16) == 4 * 16 * 2 * 9
    assert parts["output"].node == OnnxNode("linear", (2, 384), 5)
    recurrent = [part.node for part in parts_of(structures_of(Recurrent(), tokens()))]
    assert recurrent[:2] == [OnnxNode("lstm", (2, 7, 8), 12), OnnxNode("lstm", (2, 7, 12), 12)]


def test_groups_that_go_take_both_widths(timed: list[OnnxNode]) -> None:
    part = {part.name: part for part in parts_of(structures_of(Residual(), images()))}["depthwise"]
    table = measured_table(part, Ranges(0, 0), 8)
    assert table.times.shape[0] == 1
    assert all(node.window is not None and node.window.groups == node.inputs[1] == node.leaving for node in timed)


@pytest.mark.parametrize(("groups", "of_group", "least"), [(32, 32, 32), (32, 4, 4), (3, 5, 5), (3, 12, 36), (96, 1, 1)])
def test_whole_groups_are_timed(groups: int, of_group: int, least: int, timed: list[OnnxNode]) -> None:
    window = ConvolutionWindow((3, 3), (1, 1), (1, 1), (1, 1), groups)
    width = groups * of_group
    table = measured_table(Part("c.weight", OnnxNode("conv", (1, width, 8, 8), width, window)), Ranges(least, least), 8)
    assert table.leaving.max() == width and all(leaving % of_group == 0 for leaving in table.leaving)
    for node in timed:  # as the runtime requires
        assert node.window is not None and node.inputs[1] % node.window.groups == 0 == node.leaving % node.window.groups


def test_a_weight_made_of_a_parameter_is_no_table() -> None:
    class Squeezed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.mixes, self.out = nn.Linear(6, 8), nn.Conv1d(8, 8, 3, padding=1, groups=8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            weight = self.mixes.weight.squeeze(1).unsqueeze(1)  # as Mamba gives it to its kernel
            mixed = nn.functional.conv1d(self.into(x).mT, weight, self.mixes.bias, padding=1, groups=8)
            result: Tensor = self.out(mixed.mT)
            return result

    found = structures_of(Squeezed(), (torch.randn(1, 5, 6),))
    assert [part.name for part in parts_of(found)] == ["into", "out"]
    assert "conv1d" in {step.kind for step in found.steps}


def test_a_layer_of_low_rank_keeps_what_enters_and_leaves() -> None:
    part = Part("c.weight", OnnxNode("conv", (2, 32, 9, 9), 64, ConvolutionWindow((3, 3), (2, 2), (1, 1), (1, 1))))
    point = ConvolutionWindow((1, 1), (1, 1), (0, 0), (1, 1))
    assert part.as_two(8) == (part.at(32, 8), OnnxNode("conv", (2, 8, 5, 5), 64, point))
    linear = Part("l.weight", OnnxNode("linear", (2, 7, 32), 64))
    assert linear.as_two(8) == (OnnxNode("linear", (2, 7, 32), 8, bias=False), OnnxNode("linear", (2, 7, 8), 64))
    assert Part("r", OnnxNode("lstm", (2, 7, 32), 64), 4).as_two(8) is None
