"""Rules of TensorRT's ONNX parser that can be checked without TensorRT: opset, operators, types and some restrictions."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from paceline.errors import UserError

MATRIX = Path(__file__).with_name("tensorrt.toml")
MOST_LISTED = 3
Node = Any
Attributes = Mapping[str, Any]


@cache
def matrix() -> dict[str, Any]:
    """Return the published table of operators."""
    return tomllib.loads(MATRIX.read_text(encoding="utf-8"))


@cache
def operator_types() -> dict[str, frozenset[str]]:
    """Return the types of data of each operator."""
    groups = matrix()["types"]
    return {name: frozenset(groups[group]) for group, names in matrix()["operators"].items() for name in names}


def check_tensorrt(file: Path) -> None:
    """Check that TensorRT's parser takes an ONNX file, as far as its published rules say.

    Raises:
        UserError: it would not, with the operators and the reasons.
    """
    import onnx

    reasons = list(dict.fromkeys(broken_rules(onnx.shape_inference.infer_shapes(onnx.load(file)))))
    if reasons:
        more = f"; and {len(reasons) - MOST_LISTED} more" if len(reasons) > MOST_LISTED else ""
        what = "; ".join(reasons[:MOST_LISTED])
        raise UserError(f"TensorRT does not take this network: {what}{more}", "replace that operation, or use another target")


def broken_rules(model: Any) -> Iterator[str]:
    """Yield the reason for each node that TensorRT's parser refuses, and for an opset beyond its range."""
    from onnx import TensorProto

    opset, known = matrix()["opset"], operator_types()
    for each in model.opset_import:
        if each.domain in ("", "ai.onnx") and not opset["least"] <= each.version <= opset["most"]:
            yield f"opset {each.version} is not in {opset['least']} to {opset['most']}"
    values = [*model.graph.value_info, *model.graph.input, *model.graph.output]
    types = {each.name: each.type.tensor_type.elem_type for each in values}
    types |= {each.name: each.data_type for each in model.graph.initializer}
    constants = {each.name for each in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            constants.update(node.output)
        if node.domain not in ("", "ai.onnx") or node.op_type not in known:
            yield f"it has no operator {f'{node.domain}.' if node.domain else ''}{node.op_type}"
            continue
        data = node.output[0] if node.op_type in _BY_OUTPUT else next(iter(node.input), node.output[0])
        kind = TensorProto.DataType.Name(types.get(data, TensorProto.UNDEFINED))
        if kind not in known[node.op_type] | {"UNDEFINED", "DOUBLE"}:  # it casts DOUBLE to FLOAT
            yield f"its {node.op_type} does not take {kind}"
        if node.op_type in _RULES and (reason := _RULES[node.op_type](node, _attributes(node), constants)):
            yield f"{node.op_type}: {reason}"


_BY_OUTPUT = ("Constant", "ConstantOfShape", "Where", "If", "Loop", "RandomNormal", "RandomUniform")
"""Operators whose first input is no data, or that have none."""


def _attributes(node: Node) -> Attributes:
    from onnx import helper

    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def _pool(node: Node, given: Attributes, constants: set[str]) -> str:
    if len(given.get("kernel_shape", ())) not in (0, 2, 3):
        return "2D or 3D pooling only"
    if any(each != 1 for each in given.get("dilations", ())):
        return "dilations must be 1"
    return "the second output is not supported" if len([each for each in node.output if each]) > 1 else ""


def _first_output(node: Node, given: Attributes, constants: set[str]) -> str:
    return "only the first output is supported" if any(node.output[1:]) else ""


def _constant_second(node: Node, given: Attributes, constants: set[str]) -> str:
    second = node.input[1] if len(node.input) > 1 else ""
    return "its axes must be constant" if second and second not in constants else ""


def _lstm(node: Node, given: Attributes, constants: set[str]) -> str:
    return "input_forget and layout must be 0" if given.get("input_forget") or given.get("layout") else ""


def _resize(node: Node, given: Attributes, constants: set[str]) -> str:
    modes = ("half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn", "asymmetric", "align_corners")
    if given.get("mode", b"nearest") not in (b"nearest", b"linear"):
        return "its mode must be nearest or linear"
    if given.get("coordinate_transformation_mode", b"half_pixel").decode() not in modes:
        return f"its coordinates must be {', '.join(modes)}"
    return "antialias is not supported" if given.get("antialias") else ""


def _scatter(node: Node, given: Attributes, constants: set[str]) -> str:
    return "no reduction is supported" if given.get("reduction", b"none") != b"none" else ""


_REDUCTIONS = [name for name in operator_types() if name.startswith("Reduce")]
_RULES: Mapping[str, Callable[[Node, Attributes, set[str]], str]] = {
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool"), _pool),
    **dict.fromkeys(("Squeeze", "Unsqueeze", "CumSum", "OneHot", *_REDUCTIONS), _constant_second),
    "LayerNormalization": _first_output,
    "LSTM": _lstm,
    "Resize": _resize,
    "ScatterND": _scatter,
}
"""Restrictions of the table that a file shows."""
