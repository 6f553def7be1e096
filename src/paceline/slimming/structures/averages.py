"""Means over units that may be removed, and how a norm's weight makes up for the units that are gone.

A removed unit added nothing to the sum, so the mean over the others is larger by their share: whole / left. A norm that divides
by the mean, or by its root, is then too small by a factor that its weight takes over, and its epsilon grows like the mean. This
holds for RMSNorm (Zhang and Sennrich, "Root mean square layer normalization", NeurIPS 2019, equation 4) and for global response
normalization (Woo et al., "ConvNeXt V2", CVPR 2023, section 3.2). It does not hold for LayerNorm, which subtracts the mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from paceline.slimming.structures.branches import Graph
from paceline.slimming.structures.structures import Average

COPIES = ("to", "_to_copy", "type_as", "detach", "clone", "alias", "contiguous", "dropout")
SHAPES = ("view", "reshape", "_unsafe_view", "unsqueeze", "expand")
CHECKS = ("_assert_tensor_metadata",)
ROOTS = {"rsqrt": "mul", "sqrt": "div"}
"""Operation that normalises by each form of a root."""


def averages_of(graph: Graph) -> dict[fx.Node, Average]:
    """Return the norms of a graph, by the operation that takes the mean."""
    found = {}
    for node in graph.nodes:
        if node.op == "call_function":
            kind = graph.kind(node)
            average = _mean(graph, node) if kind == "mean" else _rms_norm(graph, node) if kind == "rms_norm" else None
            if average is not None:
                found[node] = average
    return found


def refit(module: nn.Module, own: str, average: Average, ratio: float) -> None:
    """Change the weight and the epsilon of a norm.

    Args:
        own: name of the weight in the module. ``ratio``: whole / left.
    """
    with torch.no_grad():
        weight: Tensor = getattr(module, own)
        weight.copy_((weight.double() + average.offset) * ratio**average.power - average.offset)
    for name, value in list(vars(module).items()):
        if isinstance(value, float) and value == average.epsilon:
            setattr(module, name, value * ratio)
    if isinstance(module, nn.RMSNorm):
        module.normalized_shape = tuple(weight.shape)
        if module.eps is None:
            module.eps = torch.finfo(weight.dtype).eps * ratio


def _rms_norm(graph: Graph, node: fx.Node) -> Average | None:
    shape, weight, *epsilon = node.args[1:4] if len(node.args) > 2 else (None, None)
    if not isinstance(shape, list | tuple) or len(shape) != 1 or (scaled := _weight(graph, weight)) is None:
        return None
    name, offset = scaled
    return Average(name, 0.5, offset, _number(epsilon[0]) if epsilon else None)


def _mean(graph: Graph, mean: fx.Node) -> Average | None:
    dims = mean.args[1] if len(mean.args) > 1 else None
    if not isinstance(dims, list | tuple) or len(dims) != 1 or not isinstance(dim := dims[0], int):
        return None
    squares = _is_square(graph, _before(graph, mean.args[0], COPIES))
    node, epsilon, root = mean, None, ""
    for following in _chain(graph, mean):
        kind = graph.kind(following).rstrip("_")
        if kind == "add" and not root and epsilon is None:
            epsilon = _number(following.args[1])
            if epsilon is None:
                return None
        elif kind in ROOTS and squares and not root:
            root = kind
        elif kind == (ROOTS[root] if root else "div") and bool(root) == squares:
            if kind == "div" and following.args[1] is not node:
                return None
            scaled = _scale(graph, following)
            return None if scaled is None else Average(scaled[0], 0.5 if squares else 1.0, scaled[1], epsilon, dim)
        elif kind not in COPIES:
            return None
        node = following
    return None


def _scale(graph: Graph, quotient: fx.Node) -> tuple[str, float] | None:
    """Return the weight of a norm, and the number added to it; None if anything else reads the norm first."""
    node = quotient
    for following in _chain(graph, quotient):
        kind = graph.kind(following).rstrip("_")
        factors = following.args[:2] if kind == "mul" else following.args[1:3] if kind == "addcmul" else ()
        if node in factors:
            other = factors[1] if factors[0] is node else factors[0]
            if (found := _weight(graph, other)) is not None:
                return found
        if kind not in (*COPIES, "mul") or (kind == "mul" and other is node):
            return None
        node = following
    return None


def _weight(graph: Graph, node: Any) -> tuple[str, float] | None:
    """Return the parameter of a factor, and a number that is added to it; None for other factors."""
    offset = 0.0
    while isinstance(node, fx.Node) and node not in graph.tensors:
        kind = graph.kind(node).rstrip("_") if node.op == "call_function" else ""
        added = [number for each in node.args[:2] if (number := _number(each)) is not None]
        if kind == "add" and added:
            offset += added[0]
            node = next(each for each in node.args[:2] if _number(each) is None)
        elif kind in COPIES or kind in SHAPES:
            node = node.args[0]
        else:
            return None
    return (graph.tensors[node], offset) if isinstance(node, fx.Node) and _alone(graph, node) else None


def _alone(graph: Graph, weight: fx.Node) -> bool:
    """Return whether a weight has one use."""
    return len(_users(graph, weight)) == 1


def _chain(graph: Graph, node: fx.Node) -> Iterator[fx.Node]:
    """Return the operations that read a value, each the only reader of the one before."""
    while len(users := _users(graph, node)) == 1 and users[0].op == "call_function":
        node = users[0]
        yield node


def _users(graph: Graph, node: fx.Node) -> list[fx.Node]:
    return [user for user in node.users if user.op != "call_function" or graph.kind(user) not in CHECKS]


def _before(graph: Graph, node: Any, through: tuple[str, ...]) -> Any:
    while isinstance(node, fx.Node) and node.op == "call_function" and graph.kind(node) in through:
        node = node.args[0]
    return node


def _is_square(graph: Graph, node: Any) -> bool:
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return False
    kind = graph.kind(node)
    twice = kind == "mul" and node.args[0] is node.args[1]
    return bool(kind == "square" or twice or (kind == "pow" and node.args[1] == 2))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
