"""ONNX files with the operator of sparse convolution."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paceline.slimming.export import sparse_onnx
from paceline.slimming.export.onnx_export import difference, open_session, to_onnx
from paceline.slimming.methods.sparse_convolution import replacement

pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'paceline[slim]'")
pytestmark = pytest.mark.skipif(not sparse_onnx.LIBRARY.exists(), reason="needs the library: make native")


class Shared(nn.Module):
    """The first convolution's values are used twice, so that its ReLU is not its own; the second's norm and ReLU are."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second, self.norm = nn.Conv2d(8, 8, 3, padding=1, bias=False, groups=2), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return torch.relu(self.norm(self.second(torch.relu(y)))) + y


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, tuple[Tensor], Path]:
    torch.manual_seed(0)
    model, x = Shared().eval(), (torch.randn(2, 3, 9, 11),)
    with torch.no_grad():
        for tensor in (model.norm.running_mean, model.norm.running_var, model.norm.weight, model.norm.bias):
            tensor.uniform_(0.5, 2)
    for name in ("first", "second"):
        setattr(model, name, replacement(getattr(model, name), {"sparsity": 0.8}))
    return model, x, to_onnx(model, x, tmp_path_factory.mktemp("onnx") / "m.onnx")


@pytest.mark.long
def test_a_file_holds_nonzeros_alone_and_computes_the_same(exported: tuple[nn.Module, tuple[Tensor], Path]) -> None:
    import onnx

    model, x, file = exported
    assert difference(model, x, file) < 1e-5
    graph = onnx.load(file).graph
    assert sorted(node.op_type for node in graph.node) == ["Add", "Relu", "SparseConv", "SparseConv"]
    nodes = [node for node in graph.node if node.op_type == "SparseConv"]
    sizes = {each.name: each.dims[0] for each in graph.initializer}
    for node, layer in zip(nodes, (model.first, model.second), strict=True):
        nonzeros = int(layer.weight.count_nonzero())
        assert [sizes[name] for name in node.input[1:]] == [9, nonzeros, nonzeros, 8]
    assert len(sizes) == 8, "and no dense weights"


def test_threads_of_the_session_share_the_work(exported: tuple[nn.Module, tuple[Tensor], Path]) -> None:
    _, (x,), file = exported
    one, two = (open_session(file, threads).run(None, {"x": x.numpy()})[0] for threads in (1, 2))
    assert np.array_equal(one, two)


@pytest.mark.parametrize("change", ["channels", "pads", "constant", "taps"])
def test_a_wrong_node_is_an_error_not_a_crash(exported: tuple[nn.Module, tuple[Tensor], Path], change: str) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(exported[2])
    node = next(each for each in model.graph.node if each.op_type == "SparseConv")
    attributes = {each.name: each for each in node.attribute}
    taps = next(each for each in model.graph.initializer if each.name == node.input[2])
    if change == "channels":
        attributes["channels"].i = 5
    elif change == "pads":
        attributes["pads"].ints[0] = -1
    else:
        model.graph.initializer.remove(taps)
        if change == "taps":
            model.graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(taps)[::-1].copy(), taps.name))
        else:
            model.graph.input.append(helper.make_tensor_value_info(taps.name, TensorProto.INT32, taps.dims))
    with pytest.raises(Exception, match=r"SparseConv|taps that are not in order"):
        open_session(model).run(None, {"x": exported[1][0].numpy()})


def test_another_size_than_the_kernel_takes_is_an_error() -> None:
    from onnx import TensorProto, helper, numpy_helper

    made = {"f": np.zeros(2, np.int32), "t": np.zeros(0, np.int32), "v": np.zeros(0, np.float32), "b": np.ones(1, np.float32)}
    pads = {
        "kernel_shape": [3, 3],
        "strides": [1, 1],
        "pads": [0, 0],
        "dilations": [1, 1],
        "channels": 1,
        "group": 1,
        "relu": 0,
    }
    node = helper.make_node("SparseConv", ["x", *made], ["y"], domain=sparse_onnx.DOMAIN, **pads)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in "xy")
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(each, name) for name, each in made.items()])
    versions = [helper.make_opsetid("", 18), helper.make_opsetid(sparse_onnx.DOMAIN, 1)]
    session = open_session(helper.make_model(graph, opset_imports=versions, ir_version=9))
    assert (session.run(None, {"x": np.zeros((1, 1, 4, 5), np.float32)})[0] == 1).all()
    with pytest.raises(Exception, match="larger than the padded input"):
        session.run(None, {"x": np.zeros((1, 1, 2, 5), np.float32)})
    with pytest.raises(Exception, match="images of 1 channels"):
        session.run(None, {"x": np.zeros((1, 2, 4, 5), np.float32)})
