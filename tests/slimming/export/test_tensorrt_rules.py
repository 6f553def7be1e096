"""Rules of TensorRT's parser, on graphs made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import TensorProto, helper

from paceline.slimming.export.tensorrt_rules import broken_rules, matrix, operator_types


def graph(kind: str, opset: int = 18, element: int = TensorProto.FLOAT, outputs: int = 1, **settings: Any) -> Any:
    given = helper.make_tensor_value_info("x", element, (1, 4, 8, 8))
    second = helper.make_tensor_value_info("axes", TensorProto.INT64, (1,))
    names = [f"y{number}" for number in range(outputs)]
    inputs = ["x", "axes"] if kind in ("ReduceMean", "Unsqueeze") else ["x"]
    node = helper.make_node(kind, inputs, names, domain=settings.pop("domain", ""), **settings)
    made = [helper.make_tensor_value_info(name, element, None) for name in names]
    return helper.make_model(
        helper.make_graph([node], "g", [given, second], made), opset_imports=[helper.make_opsetid("", opset)]
    )


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (graph("Relu"), None),
        (graph("MaxPool", kernel_shape=[2, 2]), None),
        (graph("Relu", element=TensorProto.DOUBLE), None),
        (graph("Relu", opset=8), "opset 8 is not in 9 to 24"),
        (graph("Det"), "it has no operator Det"),
        (graph("SparseConv", domain="paceline"), "it has no operator paceline.SparseConv"),
        (graph("Softmax", element=TensorProto.INT32), "its Softmax does not take INT32"),
        (graph("MaxPool", kernel_shape=[2]), "MaxPool: 2D or 3D pooling only"),
        (graph("MaxPool", kernel_shape=[2, 2], dilations=[2, 2]), "MaxPool: dilations must be 1"),
        (graph("MaxPool", outputs=2, kernel_shape=[2, 2]), "MaxPool: the second output is not supported"),
        (graph("ReduceMean"), "ReduceMean: its axes must be constant"),
        (graph("LSTM", hidden_size=4, layout=1), "LSTM: input_forget and layout must be 0"),
        (graph("Resize", mode="cubic"), "Resize: its mode must be nearest or linear"),
    ],
)
def test_a_broken_rule_is_named(model: Any, reason: str | None) -> None:
    assert list(broken_rules(model)) == ([reason] if reason else [])


def test_each_operator_stands_once() -> None:
    names = [name for group in matrix()["operators"].values() for name in group]
    assert len(names) == len(set(names)) == len(operator_types()) and matrix()["operators"].keys() == matrix()["types"].keys()
    assert "INT64" in operator_types()["Gather"] and not {"Det", "QLinearConv", "MatMulInteger"} & set(names)
