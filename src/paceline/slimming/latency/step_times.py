"""Measurement of operations without weights: each once at its whole shape, with the share that remains without structures."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from paceline.array_types import Array
from paceline.slimming.latency.onnx_nodes import BLOCKS, alone, made, node_seconds, numbers, whole_blocks
from paceline.slimming.structures.structures import Labelled, UnweightedStep

FREE = (
    "dropout",
    "dropout_",
    "feature_dropout",
    "detach",
    "detach_",
    "alias",
    "contiguous",
    "clone",
    "to",
    "_to_copy",
    "expand",
)
VIEWS = ("view", "reshape", "flatten", "unflatten", "_unsafe_view", "unsqueeze", "squeeze", "unbind", "select", "expand_as")
"""Nodes that move no data."""
PLAIN = {
    **dict.fromkeys(("relu", "relu_", "relu6", "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_", "clamp"), "Relu"),
    **dict.fromkeys(("sigmoid", "sigmoid_", "silu", "silu_", "hardsigmoid", "hardswish", "hardswish_"), "Sigmoid"),
    **dict.fromkeys(("tanh", "tanh_", "mish", "softplus", "elu"), "Tanh"),
    **{"gelu": "Gelu", "exp": "Exp", "sqrt": "Sqrt", "rsqrt": "Sqrt", "div": "Div", "div_": "Div", "softmax": "Softmax"},
    **{"_softmax": "Softmax", "log_softmax": "LogSoftmax", "_log_softmax": "LogSoftmax"},
}
SCALED_PRODUCTS = 10
"""Nodes around the two products and the softmax of an attention, as PyTorch exports it."""


def step_seconds(step: UnweightedStep, threads: int = 1) -> tuple[float, float]:
    """Return the constant and the shrinking part of a step's seconds. The step is timed at its whole shape."""
    if step.fused or step.kind in FREE or not step.inputs:
        return 0.0, 0.0
    each = node_seconds(threads)
    if step.kind in VIEWS:
        return each, 0.0
    if step.kind == "scaled_dot_product_attention":
        return each * SCALED_PRODUCTS, _timed(_attention(step), threads)
    return each, max(_timed(_model(step), threads) - each, 0.0)


def shape_key(step: UnweightedStep) -> tuple[object, ...]:
    """Return a key that is equal for steps of equal time."""
    return step.kind, step.fused, step.settings, step.output.shape, *(each.shape for each in step.inputs[:3])


def least_of(step: UnweightedStep) -> Sequence[Labelled]:
    """Return the tensors among which the one with the largest loss determines the remaining share of the step."""
    if step.kind in ("matmul", "bmm", "scaled_dot_product_attention"):
        return (*step.inputs[:2], step.output)
    return (step.output,)


def _timed(model: tuple[list[Any], dict[str, Array], dict[str, Array]], threads: int) -> float:
    return alone(*model, threads)


def _model(step: UnweightedStep) -> tuple[list[Any], dict[str, Array], dict[str, Array]]:
    shape, entering = step.output.shape or (1,), step.inputs[0].shape or (1,)
    if step.kind in ("matmul", "bmm") and len(step.inputs) > 1:
        return [made("MatMul", "x", "w")], {}, {"x": numbers(*entering), "w": numbers(*step.inputs[1].shape)}
    if "pool" in step.kind and len(shape) == len(entering) > 2:
        return _pool(step)
    if step.kind in ("layer_norm", "rms_norm"):
        width = shape[-1]
        return [made("LayerNormalization", "x", "w", "b")], {"w": numbers(width), "b": numbers(width)}, {"x": numbers(*shape)}
    if step.kind == "pow":
        return [made("Pow", "x", "w")], {"w": abs(numbers(1)) + _exponent(step)}, {"x": abs(numbers(*shape))}
    if step.kind in ("permute", "transpose", "t") and len(shape) > 1:
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        order = [0, 2, 1, *range(3, len(shape))] if len(shape) > 3 else order
        return [made("Transpose", "x", perm=order)], {}, {"x": numbers(*shape)}
    if step.kind in PLAIN:
        return [made(PLAIN[step.kind], *("x", "x")[: 1 + (PLAIN[step.kind] == "Div")])], {}, {"x": numbers(*shape)}
    return [made("Add", "x", "w")], {}, {"x": numbers(*shape), "w": numbers(*shape)}


def _exponent(step: UnweightedStep) -> float:
    number = next((each for each in step.settings if isinstance(each, int | float)), 2.0)
    return float(number)


def _pool(step: UnweightedStep) -> tuple[list[Any], dict[str, Array], dict[str, Array]]:
    images, channels, *size = step.inputs[0].shape
    if "adaptive" in step.kind and prod(step.output.shape[2:]) == 1:
        return [made("GlobalAveragePool", "x")], {}, {"x": numbers(images, channels, *size)}
    settings: dict[str, Any] = {}
    lists = [each for each in step.settings if isinstance(each, tuple) and each]
    strides = [max(old // max(new, 1), 1) for old, new in zip(size, step.output.shape[2:], strict=True)]
    kernel = list(lists[0]) if lists and len(lists[0]) == len(size) else strides
    pads = [
        max((new - 1) * by + long - old, 0)
        for old, new, by, long in zip(size, step.output.shape[2:], strides, kernel, strict=True)
    ]
    pads = [min(pad, long - 1) for pad, long in zip(pads, kernel, strict=True)]
    if len(size) == 2 and channels % whole_blocks(1) == 0 and whole_blocks(1) > 1:
        settings["domain"] = BLOCKS
    kind = "MaxPool" if "max" in step.kind else "AveragePool"
    node = made(kind, "x", kernel_shape=kernel, strides=strides, pads=[0] * len(size) + pads, **settings)
    return [node], {}, {"x": numbers(images, channels, *size)}


def _attention(step: UnweightedStep) -> tuple[list[Any], dict[str, Array], dict[str, Array]]:
    query, key, value = (each.shape for each in step.inputs[:3])
    nodes = [
        made("MatMul", "x", "k", to="scores"),
        made("Add", "scores", "mask", to="masked"),
        made("Softmax", "masked", to="shares"),
        made("MatMul", "shares", "v"),
    ]
    given = {"x": numbers(*query), "k": numbers(*key[:-2], key[-1], key[-2]), "v": numbers(*value)}
    return nodes, {"mask": numbers(query[-2], key[-2])}, given
