"""Sparse convolutions in ONNX files: the operator ``paceline.SparseConv`` of ``csrc/onnxruntime``.

A file holds only the nonzero weights. A program that does not use ``open_session`` registers the library itself:
``SessionOptions.register_custom_ops_library(str(sparse_onnx.LIBRARY))``; it needs ONNX Runtime 1.17 and no Python.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from paceline.slimming.methods.sparse_convolution import Rows, SparseConv2d, sparse_convolution

DOMAIN = "paceline"
_native = importlib.util.find_spec("paceline._native")
LIBRARY = Path((_native and _native.origin) or __file__).with_name("_onnxruntime_operators.so")
"""The operator, compiled."""


def has_sparse(model: nn.Module) -> bool:
    """Return whether a model has sparse convolutions."""
    return any(isinstance(module, SparseConv2d) for module in model.modules())


def translations() -> dict[Any, Callable[..., Any]]:
    """Return the translation of the operator for ``torch.onnx.export``, with dense weights; ``compress`` must follow."""
    from onnx.defs import OpSchema
    from onnxscript import values

    floats, whole = [("T", ["tensor(float)"], "")], OpSchema.AttrType.INTS
    inputs = [OpSchema.FormalParameter(name, "T") for name in ("x", "weight")]
    inputs.append(OpSchema.FormalParameter("bias", "T", param_option=OpSchema.FormalParameterOption.Optional))
    schema = OpSchema(
        "SparseConv",
        DOMAIN,
        1,
        inputs=inputs,
        outputs=[OpSchema.FormalParameter("y", "T")],
        type_constraints=floats,
        attributes=[
            *(OpSchema.Attribute(name, whole, "") for name in ("strides", "pads", "dilations")),
            *(OpSchema.Attribute(name, OpSchema.AttrType.INT, "") for name in ("group", "relu")),
        ],
    )
    operator = values.Op(values.Opset(DOMAIN, 1), "SparseConv", schema)

    def translated(
        x: Any, weight: Any, bias: Any, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
    ) -> Any:
        given = [x, weight] if bias is None else [x, weight, bias]
        return operator(*given, strides=list(stride), pads=list(padding), dilations=list(dilation), group=groups, relu=0)

    return {sparse_convolution._opoverload: translated}


def compress(file: Path) -> None:
    """Replace dense weights by rows of nonzeros, and fuse a batch norm and a ReLU that only follow the convolution."""
    import onnx

    model = onnx.load(file)
    graph = model.graph
    for node in [node for node in graph.node if node.domain == DOMAIN]:
        _compress(graph, node)
    used = {name for node in graph.node for name in node.input}
    weights = [each for each in graph.initializer if each.name in used]
    made = {name for node in graph.node for name in node.output}
    shapes = [value for value in graph.value_info if value.name in made]
    del graph.initializer[:], graph.value_info[:]
    graph.initializer.extend(weights)
    graph.value_info.extend(shapes)
    onnx.save(model, file)


def _compress(graph: Any, node: Any) -> None:
    from onnx import helper, numpy_helper

    tensors = {each.name: each for each in graph.initializer}
    weight, *bias = (numpy_helper.to_array(tensors[name]) for name in node.input[1:])
    biases = bias[0] if bias else np.zeros(len(weight), np.float32)
    norm = _only_follower(graph, node, "BatchNormalization")
    if norm is not None and all(name in tensors for name in norm.input[1:]):
        gamma, beta, mean, variance = (numpy_helper.to_array(tensors[name]) for name in norm.input[1:])
        epsilon = next((each.f for each in norm.attribute if each.name == "epsilon"), 1e-5)
        scale = (gamma / np.sqrt(variance + epsilon)).astype(np.float32)
        weight, biases = weight * scale[:, None, None, None], (biases - mean) * scale + beta
        _absorb(graph, node, norm)
    if (relu := _only_follower(graph, node, "Relu")) is not None:
        next(each for each in node.attribute if each.name == "relu").i = 1
        _absorb(graph, node, relu)
    group = next(each.i for each in node.attribute if each.name == "group")
    node.attribute.append(helper.make_attribute("kernel_shape", weight.shape[2:]))
    node.attribute.append(helper.make_attribute("channels", weight.shape[1] * group))
    made = {**Rows.of(weight)._asdict(), "bias": biases.astype(np.float32)}
    graph.initializer.extend(numpy_helper.from_array(each, f"{node.output[0]}.{name}") for name, each in made.items())
    del node.input[1:]
    node.input.extend(f"{node.output[0]}.{name}" for name in made)


def _only_follower(graph: Any, node: Any, kind: str) -> Any:
    """Return the only user of a node's output if it is of this kind."""
    users = [each for each in graph.node if node.output[0] in each.input]
    if len(users) != 1 or users[0].op_type != kind or any(value.name == node.output[0] for value in graph.output):
        return None
    return users[0]


def _absorb(graph: Any, node: Any, follower: Any) -> None:
    node.output[0] = follower.output[0]
    graph.node.remove(follower)
