"""How long a network takes before it is slimmed: each operation with weights, timed alone at other widths on ONNX Runtime.

An operation of other widths is one ONNX node of random weights: it costs a millisecond to make, and needs no export. Between
widths that were timed, times are interpolated. Alone, an operation finds its weights in the cache: what the whole network takes
beyond its operations is put down to reading weights, and shrinks with them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from paceline.array_types import Array, Ints
from paceline.slimming.latency import LEAST_S, Latency
from paceline.slimming.onnx_export import open_session
from paceline.slimming.structures import Operation, Structures

POINTS = 5
"""Widths of each dimension that are timed, from an eighth to all."""
TURNS = 5


@dataclass(frozen=True, slots=True)
class Widths:
    """Of an operation: what enters and what leaves, channels or features; of a recurrent layer its hidden units."""

    entering: int
    leaving: int


class LayerTimes:
    """Predicted latency of a network whose structures were removed.

    Args:
        structures: of the network, with its operations.
        whole: what the whole network takes, measured.
        round_to: widths are timed at multiples of it. ``points``: so many of each dimension.
    """

    def __init__(
        self,
        structures: Structures,
        whole: Latency,
        *,
        round_to: int = 8,
        threads: int = 1,
        points: int = POINTS,
    ) -> None:
        self._structures, self.whole = structures, whole
        self._parts = [part for operation in structures.operations for part in _parts(operation, structures)]
        self._tables = [_table(part, round_to, threads, points) for part in self._parts]
        self._rest_s = max(whole.median_s - sum(self._seconds(())), 0.0)
        self._weights = sum(part.weights(part.whole) for part in self._parts)

    def seconds(self, removed: Collection[int] = ()) -> float:
        """Of the whole network without some structures."""
        weights = sum(part.weights(each) for part, each in zip(self._parts, self._widths(removed), strict=True))
        return sum(self._seconds(removed)) + self._rest_s * weights / self._weights

    def _seconds(self, removed: Collection[int]) -> list[float]:
        widths = self._widths(removed)
        return [table.at(width) for table, width in zip(self._tables, widths, strict=True)]

    def _widths(self, removed: Collection[int]) -> list[Widths]:
        gone = np.array(sorted(removed), np.int64)
        return [part.kept(self._structures, gone) for part in self._parts]


@dataclass(frozen=True, slots=True)
class _Part:
    """One ONNX node: an operation, or one layer of a recurrent one.

    Attributes:
        weight: the parameter whose dimensions are the widths. ``gates``: rows of it for each unit that leaves.
        directions: of a recurrent layer. ``window``: of a convolution: kernel, strides, paddings, dilations, groups.
    """

    kind: str
    weight: str
    whole: Widths
    inputs: tuple[int, ...]
    gates: int = 1
    directions: int = 1
    window: tuple[tuple[int, ...], ...] = ()
    groups: int = 1

    def kept(self, structures: Structures, gone: Ints) -> Widths:
        out, into = structures.units[self.weight][:2]
        left = [int((~np.isin(structures.forest.roots(units), gone)).sum()) for units in (out, into)]
        entering = left[1] if self.groups == 1 else left[0] * self.whole.entering // self.whole.leaving
        return Widths(entering, left[0] // self.gates)

    def weights(self, widths: Widths) -> float:
        """In proportion to how many it has."""
        return widths.leaving * widths.entering * prod(self.window[0] if self.window else ()) * self.gates / self.groups


@dataclass(frozen=True, slots=True)
class _Table:
    entering: Array
    leaving: Array
    grid: RegularGridInterpolator

    def at(self, widths: Widths) -> float:
        if not widths.entering or not widths.leaving:
            return 0.0
        point = np.clip(
            [widths.entering, widths.leaving], [self.entering[0], self.leaving[0]], [self.entering[-1], self.leaving[-1]]
        )
        return float(self.grid(point)[0])


def _table(part: _Part, round_to: int, threads: int, points: int) -> _Table:
    entering, leaving = (_grid(width, round_to, points) for width in (part.whole.entering, part.whole.leaving))
    if part.groups > 1:  # whole groups go, so both widths are one
        line = np.array(
            [_timed(part, Widths(int(n) * part.whole.entering // part.whole.leaving, int(n)), threads) for n in leaving]
        )
        entering = np.array([0, part.whole.entering])
        seconds = np.stack([line, line])
    else:
        seconds = np.array([[_timed(part, Widths(int(n), int(m)), threads) for m in leaving] for n in entering])
    if len(entering) == 1:
        entering, seconds = np.array([entering[0], entering[0] + 1]), np.repeat(seconds, 2, 0)
    if len(leaving) == 1:
        leaving, seconds = np.array([leaving[0], leaving[0] + 1]), np.repeat(seconds, 2, 1)
    return _Table(entering, leaving, RegularGridInterpolator((entering, leaving), seconds))


def _grid(width: int, round_to: int, points: int) -> Array:
    """Widths from about an eighth on, in multiples where the width is one."""
    if width <= round_to:
        return np.unique([max(1, width // 2), width])
    spaced = np.geomspace(max(width / 8, min(round_to, width)), width, points)
    return np.unique([*(np.maximum(np.round(spaced[:-1] / round_to), 1) * round_to).astype(int), width])


def _timed(part: _Part, widths: Widths, threads: int) -> float:
    """Seconds of the node alone: least of the turns, without what a call costs."""
    from onnx import TensorProto, helper

    graph, given = _MODELS[part.kind](part, widths)
    entering = helper.make_tensor_value_info("x", TensorProto.FLOAT, given["x"].shape)
    leaving = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [helper.make_node("Shape", ["x"], ["z"]), helper.make_node("Cast", ["z"], ["y"], to=TensorProto.FLOAT)]
    nothing = helper.make_graph(nodes, "call", [entering], [leaving])
    return max(_least(graph, given, threads) - _least(nothing, given, threads), 1e-9)


def _least(graph: Any, given: Mapping[str, Array], threads: int) -> float:
    from onnx import helper

    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = open_session(model, threads)
    for _ in range(2):
        session.run(None, given)
    start = time.perf_counter()
    session.run(None, given)
    times = max(1, round(LEAST_S / 4 / max(time.perf_counter() - start, 1e-7)))
    seconds = []
    for _ in range(TURNS):
        start = time.perf_counter()
        for _ in range(times):
            session.run(None, given)
        seconds.append((time.perf_counter() - start) / times)
    return min(seconds)


def _parts(operation: Operation, structures: Structures) -> list[_Part]:
    out, into = (len(units) for units in structures.units[operation.weights[0]][:2])
    if operation.kind == "linear":
        return [_Part("linear", operation.weights[0], Widths(into, out), operation.inputs)]
    if operation.kind in ("conv1d", "conv2d"):
        return [_convolution(operation, structures)]
    _, layers, _, _, both = operation.settings[:5]
    directions, gates = 2 if both else 1, {"lstm": 4, "gru": 3}[operation.kind]
    parts = []
    for number in range(int(str(layers))):
        per = len(operation.weights) // int(str(layers))
        weight = operation.weights[number * per]
        rows, columns = (len(units) for units in structures.units[weight][:2])
        widths = Widths(columns, rows // gates)
        parts.append(_Part(operation.kind, weight, widths, operation.inputs, gates, directions))
    return parts


def _convolution(operation: Operation, structures: Structures) -> _Part:
    units = structures.units[operation.weights[0]]
    kernel = tuple(len(each) for each in units[2:])
    settings: list[Any] = [each for each in operation.settings if each is not None]
    ones = (1,) * len(kernel)
    strides, padding, dilations, groups = (*settings, *(ones, (0,) * len(kernel), ones, 1)[len(settings) :])[:4]
    many = (tuple(each) if isinstance(each, Sequence) else (each,) * len(kernel) for each in (strides, padding, dilations))
    entering = operation.inputs[1]
    window = (kernel, *many)
    return _Part(
        "conv",
        operation.weights[0],
        Widths(entering, len(units[0])),
        operation.inputs,
        window=window,
        groups=int(groups),
    )


def _random(*shape: int) -> Array:
    return (np.random.default_rng(0).standard_normal(shape, np.float32) * 0.1).astype(np.float32)


def _linear_model(part: _Part, widths: Widths) -> tuple[Any, dict[str, Array]]:
    from onnx import TensorProto, helper, numpy_helper

    rows = prod(part.inputs[:-1])
    weights = [
        numpy_helper.from_array(_random(widths.entering, widths.leaving), "w"),
        numpy_helper.from_array(_random(widths.leaving), "b"),
    ]
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"])
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, (rows, widths.entering))
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_graph([node], "linear", [given], [made], weights), {"x": _random(rows, widths.entering)}


def _convolution_model(part: _Part, widths: Widths) -> tuple[Any, dict[str, Array]]:
    from onnx import TensorProto, helper, numpy_helper

    kernel, strides, padding, dilations = part.window
    groups = part.groups if part.groups == 1 else max(part.groups * widths.leaving // part.whole.leaving, 1)
    shape = (part.inputs[0], widths.entering, *part.inputs[2:])
    weight = _random(widths.leaving, max(widths.entering // groups, 1), *kernel)
    weights = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(_random(widths.leaving), "b")]
    node = helper.make_node(
        "Conv",
        ["x", "w", "b"],
        ["y"],
        strides=list(strides),
        pads=[*padding, *padding],
        dilations=list(dilations),
        group=groups,
    )
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_graph([node], "conv", [given], [made], weights), {"x": _random(*shape)}


def _recurrent_model(part: _Part, widths: Widths) -> tuple[Any, dict[str, Array]]:
    from onnx import TensorProto, helper, numpy_helper

    steps, batch, hidden, both = part.inputs[1], part.inputs[0], widths.leaving, part.directions
    weights = [
        numpy_helper.from_array(_random(both, part.gates * hidden, widths.entering), "w"),
        numpy_helper.from_array(_random(both, part.gates * hidden, hidden), "r"),
        numpy_helper.from_array(_random(both, 2 * part.gates * hidden), "b"),
    ]
    direction = "bidirectional" if both == 2 else "forward"
    more: dict[str, Any] = {"linear_before_reset": 1} if part.kind == "gru" else {}
    node = helper.make_node(part.kind.upper(), ["x", "w", "r", "b"], ["y"], hidden_size=hidden, direction=direction, **more)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, (steps, batch, widths.entering))
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_graph([node], part.kind, [given], [made], weights), {"x": _random(steps, batch, widths.entering)}


_MODELS = {"linear": _linear_model, "conv": _convolution_model, "lstm": _recurrent_model, "gru": _recurrent_model}

__all__ = ["LayerTimes", "Widths"]
