"""Weights in blocks: what the file holds, read by NumPy, is what ONNX Runtime computes with, and takes the predicted bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from paceline.array_types import Array
from paceline.errors import UserError
from paceline.slimming.export.onnx_export import feed, open_session, to_onnx
from paceline.slimming.methods.block_weights import StoredWeight, predicted_bytes
from paceline.slimming.methods.quantise import quantised
from paceline.slimming.methods.weight_forms import FP32, INT4, INT8, INT8_BLOCKS, WeightForm
from slimming_networks import Recurrent, Transformer, images, tokens


def written(tmp_path: Path, *weights: Any) -> Path:
    """An ONNX file of matrix products, made without an exporter, which takes seconds."""
    helper, last = onnx.helper, len(weights) - 1
    nodes = [
        helper.make_node("MatMul", [f"x{n}", f"w{n}"], ["y" if n == last else f"x{n + 1}"], f"m{n}") for n in range(last + 1)
    ]
    ends = (("x0", (3, weights[0].shape[0])), ("y", (3, weights[-1].shape[1])))
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in ends]
    held = [numpy_helper.from_array(each, f"w{number}") for number, each in enumerate(weights)]
    model = helper.make_model(helper.make_graph(nodes, "net", info[:1], info[1:], held), ir_version=9)
    model.opset_import[0].version = 20
    onnx.save(model, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def unpacked(codes: Any, bits: int) -> Array:
    """Values of packed codes: the low half of a byte comes first (docs/ContribOperators.md)."""
    return codes if bits == 8 else np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)


def dequantised(node: Any, tensors: dict[str, Array]) -> Array:
    """Weight (inputs, outputs) of a ``MatMulNBits`` node: (code - zero point) x scale, by its documentation."""
    settings = {each.name: each.i for each in node.attribute}
    bits, inputs, outputs = settings["bits"], settings["K"], settings["N"]
    codes = unpacked(tensors[node.input[1]], bits).astype(np.float64)  # (outputs, blocks, block)
    blocks = codes.shape[1]
    scales = tensors[node.input[2]].reshape(outputs, blocks)
    zeros: Array = np.full((outputs, blocks), 2.0 ** (bits - 1))
    if len(node.input) > 3 and node.input[3]:
        zeros = unpacked(tensors[node.input[3]].reshape(outputs, -1), bits)[:, :blocks].astype(np.float64)
    found: Array = ((codes - zeros[..., None]) * scales[..., None]).reshape(outputs, -1)[:, :inputs].T
    return found


@pytest.mark.parametrize("text", ["int4", "int8-blocks", "int4:block=16:symmetric"])
def test_numpy_reads_the_weights_that_the_runtime_computes_with(text: str, tmp_path: Path) -> None:
    form, random = WeightForm.parse(text), np.random.default_rng(0)
    weights = [random.standard_normal(shape, np.float32) for shape in ((200, 48), (48, 7))]
    file = written(tmp_path, *weights)
    x = random.standard_normal((3, 200), np.float32)
    small = quantised(file, tmp_path / "small.onnx", [(torch.from_numpy(x),)], form)
    model = onnx.load(small)
    tensors = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type == "MatMulNBits"]
    assert len(nodes) == 2 and small.stat().st_size < 0.45 * file.stat().st_size
    expected = x.astype(np.float64)
    for node, weight in zip(nodes, weights, strict=True):
        read = dequantised(node, tensors)
        widest = np.ptp(weight) / (2**form.bits - 1)
        assert np.abs(read - weight).max() < widest * (1.1 if form.symmetric else 0.6), "half a step, or a clipped end"
        expected = expected @ read
    session = open_session(small)
    found = session.run(None, feed(session, (torch.from_numpy(x),)))[0]
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    predicted = predicted_bytes(file, form)
    assert predicted == pytest.approx(small.stat().st_size, abs=300 * len(nodes))


def test_bytes_follow_from_the_layout() -> None:
    """128 x 2 weights: int4 has 64 + 4 bytes for each block of 128 and half a byte for its zero point."""
    weight = StoredWeight("w", "MatMul", (256, 10))
    assert weight.stored_bytes(FP32) == 10240 and weight.stored_bytes(INT8) == 2560 + 50
    assert weight.stored_bytes(INT4) == 10 * (2 * (64 + 4) + 1) and weight.stored_bytes(INT8_BLOCKS) == 10 * (2 * 132 + 2)
    assert weight.stored_bytes(WeightForm.parse("int4:symmetric")) == 10 * 2 * 68
    assert StoredWeight("c", "Conv", (8, 4, 3, 3)).stored_bytes(INT4) == 288 + 40, "convolutions are in int8"
    assert StoredWeight("e", "Gather", (5, 256)).stored_bytes(INT4) == 640 + 40 + 5
    assert (
        StoredWeight("e", "Gather", (5, 256)).stored_bytes(INT8)
        == 5120
        == StoredWeight("r", "GRU", (1, 60, 64 // 3)).stored_bytes(INT8) + 80
    )


@pytest.mark.long
@pytest.mark.parametrize("model", [lambda: Recurrent(hidden=64), lambda: Recurrent(nn.GRU, hidden=64), Transformer, "conv"])
def test_the_size_of_exported_networks_is_known_before(model: Any, tmp_path: Path) -> None:
    given = images() if model == "conv" else tokens()
    convolutions = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(32 * 36, 64))
    file = to_onnx(convolutions if model == "conv" else model(), given, tmp_path / "net.onnx")
    for text in ("int8", "int8-blocks", "int4", "int4:block=32"):
        form = WeightForm.parse(text)
        small = quantised(file, tmp_path / "small.onnx", [given] * 4, form)
        nodes = onnx.load(small).graph.node
        kinds = {node.op_type for node in nodes}
        assert ("MatMulNBits" in kinds) == form.blocks and (not form.blocks or "Gemm" not in kinds)
        assert predicted_bytes(file, form) == pytest.approx(small.stat().st_size, abs=300 * len(nodes)), "names, new nodes"


@pytest.mark.long
def test_a_network_without_products_has_no_int4(tmp_path: Path) -> None:
    x = (torch.randn(1, 3, 8, 8),)
    file = to_onnx(nn.Conv2d(3, 8, 3), x, tmp_path / "net.onnx")
    says = (
        "net.onnx has no matrix product with constant weights, and ONNX Runtime has no 4-bit convolution: int4 changes nothing"
    )
    with pytest.raises(UserError, match=f"{says}; give int8"):
        quantised(file, tmp_path / "small.onnx", [x], INT4)
    assert [each.name for each in tmp_path.iterdir()] == ["net.onnx"]
