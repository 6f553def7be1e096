"""Measured latency by layer: every node finds its module, and the layers and the rest are the whole run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paceline.slim_record import LayerLatency
from paceline.slimming.export import sparse_onnx
from paceline.slimming.export.onnx_export import to_onnx
from paceline.slimming.latency.layer_profile import OTHER, SlimLayerProfile, _added, _node_seconds, layer_latencies, profile
from paceline.slimming.latency.layer_times import REST
from paceline.slimming.methods.sparse_convolution import replacement
from paceline.slimming.structures.shrink import shrunk
from paceline.slimming.structures.tracing import structures_of
from slimming_networks import Recurrent, Residual, Transformer, images, tokens, unlike

pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'paceline[slim]'")
CONVOLUTIONS = {"stem.0", "first", "second", "depthwise", "grouped", "output"}
BLOCKS = {f"encoder.layers.{number}.{part}" for number in (0, 1) for part in ("self_attn", "linear1", "linear2")}


class Blocks(nn.Module):
    """A residual block as ResNet has it: norms, a convolution on the way past, activations after the addition."""

    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.second, self.second_norm = nn.Conv2d(16, 16, 3, padding=1, bias=False, groups=groups), nn.BatchNorm2d(16)
        self.past, self.past_norm = nn.Conv2d(3, 16, 1, bias=False), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.past_norm(self.past(x)) + self.second_norm(self.second(y)))


@pytest.mark.long
@pytest.mark.everyday("block")
@pytest.mark.parametrize(
    ("make", "example", "layers"),
    [
        (Residual, images, CONVOLUTIONS),
        (Recurrent, tokens, {"layers", "output"}),
        (Transformer, tokens, {*BLOCKS, "output"}),
        (Blocks, images, {"first", "second", "past"}),
        (lambda: Blocks(groups=2), images, {"first", "second", "past"}),
    ],
    ids=["residual", "lstm", "transformer", "block", "grouped block"],
)
def test_every_node_finds_its_module_and_the_shares_are_the_whole(
    make: Callable[[], nn.Module], example: Callable[[], tuple[Tensor, ...]], layers: set[str], tmp_path: Path
) -> None:
    model = unlike(make())
    found = profile(to_onnx(model, example(), tmp_path / "net.onnx"), example())
    assert found.operations.keys() == layers
    assert found.steps.keys() <= {name for name, _ in model.named_modules()}, "and none is unknown"
    assert all(each >= 0 for each in (*found.operations.values(), *found.steps.values()))
    nodes_s = sum((*found.operations.values(), *found.steps.values()))
    assert 0 < nodes_s <= found.latency_s * (1 + 1e-9)
    assert sum(found.by_layer().values()) == pytest.approx(found.latency_s)
    shares = found.by_layer(1.0)
    assert list(shares) == [*found.operations, REST]
    assert sum(shares.values()) == pytest.approx(1) and shares[REST] >= -1e-9


@pytest.mark.long
def test_the_layer_of_most_work_takes_most_time(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 64)).eval()
    inputs = (torch.randn(64, 64),)
    shares = profile(to_onnx(model, inputs, tmp_path / "net.onnx"), inputs).by_layer(1.0)
    assert list(shares) == ["0", "2", "4", REST] and shares["2"] > 0.5


@pytest.mark.long
@pytest.mark.skipif(not sparse_onnx.LIBRARY.exists(), reason="needs the library: make native")
def test_sparse_convolutions_are_layers_too(tmp_path: Path) -> None:
    model = Residual().eval()
    model.first = replacement(model.first, {"sparsity": 0.8})  # type: ignore[assignment, arg-type]
    found = profile(to_onnx(model, images(), tmp_path / "net.onnx"), images())
    assert found.operations.keys() == CONVOLUTIONS


@pytest.mark.long
def test_layers_of_a_slimmed_network_stand_beside_those_of_the_whole(tmp_path: Path) -> None:
    model, inputs = unlike(Recurrent()), tokens()
    found = structures_of(model, inputs)
    second = next(every for layer, every in found.layers().items() if layer.endswith("ih_l1"))
    small = shrunk(model, found, {each.number for each in second[:8]})  # layers of two widths are a stack
    files = [to_onnx(each, inputs, tmp_path / f"{number}.onnx") for number, each in enumerate((model, small))]
    whole, after = (profile(file, inputs) for file in files)
    assert set(after.operations) == {"layers.layers.0", "layers.layers.1", "output"}
    rows = layer_latencies(
        whole.by_layer(), after.by_layer(), {"layers.weight_ih_l0": 1e-6, "layers.weight_ih_l1": 2e-6, REST: 3e-6}
    )
    assert [row.layer for row in rows] == ["layers", "output", REST]
    assert [row.predicted_s for row in rows] == pytest.approx([3e-6, 0, 3e-6])
    assert sum(row.before_s for row in rows) == pytest.approx(whole.latency_s)
    assert sum(row.after_s for row in rows) == pytest.approx(after.latency_s)
    assert rows[0].after_s == pytest.approx(after.operations["layers.layers.0"] + after.operations["layers.layers.1"])


def test_parts_count_to_the_layer_that_they_are_inside_of() -> None:
    before = {"a": 4.0, "a.b": 3.0, "ab": 2.0, REST: 1.0}
    after = {"a.b.0": 1.5, "a.b.1": 0.5, "a.c": 1.0, "abc": 0.25, REST: 0.5}
    predicted = {"a": 1.0, "a.b": 2.0, "ab.in_proj_weight": 1.0, REST: 0.75}
    assert layer_latencies(before, after, predicted, ["a.b"]) == (
        LayerLatency("a", 4.0, 1.0, 1.0),
        LayerLatency("a.b", 3.0, 2.0, 0.0),
        LayerLatency("ab", 2.0, 0.0, 1.0),
        LayerLatency(REST, 1.0, 0.75, 0.75),
    )
    assert layer_latencies({"": 2.0, REST: 1.0}, {"0": 1.0, REST: 0.5}, {"weight_ih_l0": 0.5, REST: 0.25})[0] == LayerLatency(
        "", 2.0, 1.0, 0.5
    )


def test_what_the_profiler_adds_is_taken_from_all_nodes_alike() -> None:
    import numpy as np

    assert _added(np.array([5.0, 3.0, 1.0]), 10.0) == 0
    assert _added(np.array([5.0, 3.0, 1.0]), 6.0) == pytest.approx(1)
    assert _added(np.array([5.0, 3.0, 1.0]), 3.0) == pytest.approx(2.5), "and no more than a node took"
    assert _added(np.array([]), 3.0) == 0


def test_nodes_inside_of_others_and_runs_of_the_warm_up_do_not_count() -> None:
    def run(ts: int, scale: int) -> list[dict[str, object]]:
        return [
            {"cat": "Node", "name": "loop_kernel_time", "ts": ts + 1, "dur": 10 * scale},
            {"cat": "Node", "name": "inside_kernel_time", "ts": ts + 2, "dur": 4},
            {"cat": "Node", "name": "after_kernel_time", "ts": ts + 2 + 10 * scale, "dur": 2},
            {"cat": "Session", "name": "model_run", "ts": ts, "dur": 10 * scale + 5},
        ]

    nodes, own = _node_seconds([*run(0, 9), *run(1000, 1), *run(2000, 1)], 2)
    assert nodes == pytest.approx({"loop": 10e-6, "inside": 0.0, "after": 2e-6})
    assert own == pytest.approx(3e-6)


def test_a_better_latency_keeps_the_shares() -> None:
    found = SlimLayerProfile(10.0, {"a": 4.0}, {OTHER: 3.0}).by_layer(20.0)
    assert found == pytest.approx({"a": 8.0, REST: 12.0})
