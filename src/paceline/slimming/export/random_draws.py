"""Random draws that are constants, so that a file of a network that draws can be compared with the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

DRAWN = 0.5
"""Value of each draw. Not zero: what is multiplied with a draw is compared too."""
_ATEN = torch.ops.aten
TORCH_DRAWS = (_ATEN.randn, _ATEN.randn_like, _ATEN.rand, _ATEN.rand_like)
"""Draws of PyTorch that are constants. With others, such as integers, a network cannot be compared."""
ONNX_DRAWS: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    kind + like: value
    for kind, value in (
        ("RandomNormal", lambda settings: settings.get("mean", 0.0) + DRAWN * settings.get("scale", 1.0)),
        (
            "RandomUniform",
            lambda settings: (1 - DRAWN) * settings.get("low", 0.0) + DRAWN * settings.get("high", 1.0),
        ),
    )
    for like in ("", "Like")
}
"""Kinds of an ONNX graph's nodes that draw, with the value that each gets."""


class ConstantDraws(TorchDispatchMode):
    """Let draws of normal and uniform numbers be ``DRAWN``."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and fill what it drew."""
        found = func(*args, **(kwargs or {}))
        return found.fill_(DRAWN) if func.overloadpacket in TORCH_DRAWS and isinstance(found, Tensor) else found


def without_draws(file: str | Path) -> Any | None:
    """Return the file's model with constants instead of draws; None if it draws nothing."""
    import onnx
    from onnx import helper

    model = onnx.load(str(file))
    if not any(node.op_type in ONNX_DRAWS for node in model.graph.node):
        return None
    nodes = []
    for number, node in enumerate(model.graph.node):
        if node.op_type not in ONNX_DRAWS:
            nodes.append(node)
            continue
        settings = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        kind = settings.get("dtype", onnx.TensorProto.FLOAT)
        value = helper.make_tensor("value", kind, [1], [ONNX_DRAWS[node.op_type](settings)])
        shape, made = f"drawn_shape_{number}", node.output[0]
        if not node.input:
            sizes = helper.make_tensor("sizes", onnx.TensorProto.INT64, [len(settings["shape"])], settings["shape"])
            nodes.append(helper.make_node("Constant", [], [shape], value=sizes))
        else:
            nodes.append(helper.make_node("Shape", [node.input[0]], [shape]))
        same_kind = not node.input or "dtype" in settings
        filled = made if same_kind else f"drawn_{number}"
        nodes.append(helper.make_node("ConstantOfShape", [shape], [filled], value=value))
        if not same_kind:
            nodes.append(helper.make_node("CastLike", [filled, node.input[0]], [made]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model
