"""Measurement of single nodes of ONNX Runtime: operations of any size with random weights, without an export.

On x86 and Arm, ONNX Runtime keeps images in blocks of channels between convolutions (nchwc_transformer.cc). A single
convolution would pay for the conversion to blocks and back, unlike one inside a network. So it is timed in the blocked form.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError
from paceline.slimming.export.onnx_export import open_session

BUDGET_S = 0.012
"""Seconds for which each node runs, at least ``RUNS`` times. The fastest run counts: a busy machine disturbs it least."""
RUNS = 6
SHORT_S = 5e-5
"""Least seconds of a timing: faster nodes are timed several at a time, so that the clock counts little."""
BLOCKS = "com.microsoft.nchwc"
ALIGNED = 4
"""Divisor of the input channels of a blocked convolution."""

GATES = {"lstm": 4, "gru": 3}


@dataclass(frozen=True, slots=True)
class ConvolutionWindow:
    """Settings of a convolution: one number for each dimension of the image. ``extra``: rows that a transposed one adds."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1
    extra: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """Operation with weights to time.

    Attributes:
        kind: ``linear``, ``conv``, ``conv_transpose``, ``lstm`` or ``gru``.
        inputs: shape of the input: (..., features), (images, channels, ...) or (sequences, steps, features).
        leaving: output features, channels or hidden units, of each direction.
        window: window of a convolution. ``directions``: directions of a recurrent layer.
    """

    kind: str
    inputs: tuple[int, ...]
    leaving: int
    window: ConvolutionWindow | None = None
    directions: int = 1
    bias: bool = True

    @property
    def size(self) -> tuple[int, ...]:
        """Size of a convolution's output image."""
        window = self.window
        assert window is not None
        by_dim = zip(self.inputs[2:], window.kernel, window.strides, window.padding, window.dilations, strict=True)
        if self.kind == "conv_transpose":
            grown = ((size - 1) * by - 2 * pad + apart * (kernel - 1) + 1 for size, kernel, by, pad, apart in by_dim)
            return tuple(size + more for size, more in zip(grown, window.extra, strict=True))
        return tuple((size + 2 * pad - apart * (kernel - 1) - 1) // by + 1 for size, kernel, by, pad, apart in by_dim)

    @property
    def products(self) -> float:
        """Number of multiply-adds."""
        if self.window is not None:
            each = self.inputs[1] // self.window.groups * prod(self.window.kernel)
            places = self.inputs[2:] if self.kind == "conv_transpose" else self.size
            return float(self.inputs[0] * prod(places) * self.leaving * each)
        if self.kind == "linear":
            return float(prod(self.inputs) * self.leaving)
        gates = GATES[self.kind] * self.directions * self.leaving
        return float(prod(self.inputs[:2]) * gates * (self.inputs[-1] + self.leaving))

    @property
    def bytes(self) -> float:
        """Bytes of the input, the output and the weights, counted once each."""
        entering = prod(self.inputs)
        if self.window is not None:
            weights = self.leaving * self.inputs[1] // self.window.groups * prod(self.window.kernel)
            return 4.0 * (entering + self.inputs[0] * self.leaving * prod(self.size) + weights)
        rows = prod(self.inputs[:-1])
        if self.kind == "linear":
            return 4.0 * (entering + rows * self.leaving + self.inputs[-1] * self.leaving)
        weights = GATES[self.kind] * self.leaving * (self.inputs[-1] + self.leaving)
        return 4.0 * (entering + self.directions * (rows * self.leaving + weights))


def seconds(node: OnnxNode, threads: int = 1, copies: int = 1) -> float:
    """Return the seconds of the node alone, without the cost of a call.

    Args:
        copies: number of copies with separate weights that take turns, so that caches hold the weights of no copy.
    """
    return max(alone(*_models(node), threads, copies), 1e-9)


def alone(
    nodes: Sequence[Any], weights: Mapping[str, Array], given: Mapping[str, Array], threads: int = 1, copies: int = 1
) -> float:
    """Return the seconds of the fastest run of a graph from ``x`` to ``y``, without the cost of a call. An empty call is timed
    in turn with it, since the cost of calls varies with the machine's load.

    Args:
        copies: number of sessions of the graph that take turns.
    """
    took, call = _fastest([_calls(nodes, weights, given, threads, copies), _empty_calls(threads)], threads)
    return max(took - call, 0.0)


Call = Callable[[], Any]


def _calls(
    nodes: Sequence[Any], weights: Mapping[str, Array], given: Mapping[str, Array], threads: int, copies: int = 1
) -> list[Call]:
    """Return functions that run the graph's sessions, each of which has run once."""
    from onnx import TensorProto, helper, numpy_helper

    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in given.items()]
    kind = TensorProto.INT64 if nodes[-1].op_type == "Shape" else TensorProto.FLOAT
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "node", inputs, [helper.make_tensor_value_info("y", kind, None)], held)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(BLOCKS, 1), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    sessions = [open_session(model, threads) for _ in range(copies)]
    for session in sessions:
        session.run(None, given)
    return [functools.partial(session.run, None, given) for session in sessions]


@functools.cache
def _empty_calls(threads: int) -> list[Call]:
    return _calls([made("Shape", "x")], {}, {"x": numbers(1)}, threads)


def _fastest(groups: Sequence[Sequence[Call]], threads: int) -> list[float]:
    """Return the seconds of a call of each group; the groups take turns. The first group's speed sets the calls per turn."""
    clock = clock_for(threads)
    start = clock()
    groups[0][0]()
    calls = len(groups[0]) * max(1, round(SHORT_S / len(groups[0]) / max(clock() - start, 1e-7)))
    turns = [list(itertools.islice(itertools.cycle(group), calls)) for group in groups]
    best, left, runs = [float("inf")] * len(groups), BUDGET_S, 0
    while runs < RUNS or left > 0:
        took = []
        for turn in turns:
            start = clock()
            for call in turn:
                call()
            took.append(clock() - start)
        best, left, runs = [min(each) for each in zip(best, took, strict=True)], left - took[0], runs + 1
    return [each / calls for each in best]


def clock_for(threads: int) -> Callable[[], float]:
    """Return the clock: processor time for one thread, which other programs do not lengthen, else the time of day."""
    return time.thread_time if threads == 1 else time.perf_counter


@functools.cache
def call_seconds(threads: int = 1) -> float:
    """Return the cost of a runtime's call with an empty node."""
    return _fastest([_empty_calls(threads)], threads)[0]


@functools.cache
def node_seconds(threads: int = 1) -> float:
    """Return the constant cost of each node."""
    many = 32
    chain = [made("Add", f"x{number or ''}", "one", to=f"x{number + 1}") for number in range(many)]
    chain[-1].output[0] = "y"
    return alone(chain, {"one": numbers(4)}, {"x": numbers(4)}, threads) / (many - 1)


@functools.cache
def block() -> int:
    """Return the channels per block of this machine's blocked form; 1 if it has no blocked form."""
    try:
        session = open_session(_model_of_blocks())
        return int(session.run(None, {"x": numbers(1, ALIGNED, 1, 1)})[0].shape[1])
    except UserError:
        raise
    except Exception:  # ONNX Runtime's own errors have no common public class; this form is internal to it
        return 1


def _model_of_blocks() -> Any:
    from onnx import TensorProto, helper

    entering = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, ALIGNED, 1, 1))
    leaving = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([made("ReorderInput", "x", domain=BLOCKS)], "blocks", [entering], [leaving])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid(BLOCKS, 1)], ir_version=9)


def whole_blocks(width: int) -> int:
    """Round a width up to the next whole block."""
    return -(-width // block()) * block()


def is_blocked(channels: int, leaving: int, window: ConvolutionWindow) -> bool:
    """Return whether a convolution runs in the blocked form (``NchwcTransformerImpl::TransformConv`` of ONNX Runtime)."""
    if block() == 1 or len(window.kernel) != 2 or channels < block() or channels % ALIGNED:
        return False
    return window.groups in (1, channels) and (window.groups == 1 or leaving == channels)


def made(kind: str, *given: str, to: str = "y", **settings: Any) -> Any:
    """Return a node of ONNX."""
    from onnx import helper

    return helper.make_node(kind, list(given), [to], **settings)


def numbers(*shape: int) -> Array:
    """Return random numbers. Large arrays repeat them, since a draw costs more than the timed operation."""
    drawn = np.random.default_rng(0).standard_normal(4099, np.float32) * np.float32(0.1)
    return np.resize(drawn, shape)


Model = tuple[list[Any], dict[str, Array], dict[str, Array]]
"""Nodes, weights and inputs."""


def _models(node: OnnxNode) -> Model:
    kinds = {"linear": _linear, "conv": _convolution, "conv_transpose": _transposed}
    return kinds.get(node.kind, _recurrent)(node)


def _linear(node: OnnxNode) -> Model:
    rows, entering = prod(node.inputs[:-1]), node.inputs[-1]
    given = {"x": numbers(rows, entering)}
    if not node.bias:
        return [made("MatMul", "x", "w")], {"w": numbers(entering, node.leaving)}, given
    weights = {"w": numbers(entering, node.leaving), "b": numbers(node.leaving)}
    return [made("Gemm", "x", "w", "b")], weights, given


def _convolution(node: OnnxNode) -> Model:
    window = node.window
    assert window is not None
    (images, channels, *size), leaving, groups = node.inputs, node.leaving, window.groups
    blocked = is_blocked(channels, leaving, window)
    if blocked:
        channels, leaving = whole_blocks(channels), whole_blocks(leaving)
        groups = 1 if groups == 1 else channels
    weights = {"w": numbers(leaving, channels // groups, *window.kernel), "b": numbers(leaving)}
    settings: dict[str, Any] = {
        "kernel_shape": list(window.kernel),
        "strides": list(window.strides),
        "pads": [*window.padding, *window.padding],
        "dilations": list(window.dilations),
        "group": groups,
    }
    if blocked:
        settings["domain"] = BLOCKS
    return [made("Conv", "x", "w", "b", **settings)], weights, {"x": numbers(images, channels, *size)}


def _transposed(node: OnnxNode) -> Model:
    window = node.window
    assert window is not None
    images, channels, *size = node.inputs
    settings: dict[str, Any] = {
        "kernel_shape": list(window.kernel),
        "strides": list(window.strides),
        "pads": [*window.padding, *window.padding],
        "output_padding": list(window.extra),
        "dilations": list(window.dilations),
    }
    weights = {"w": numbers(channels, node.leaving, *window.kernel)}
    return [made("ConvTranspose", "x", "w", **settings)], weights, {"x": numbers(images, channels, *size)}


def _recurrent(node: OnnxNode) -> Model:
    (batch, steps, entering), hidden, both = node.inputs, node.leaving, node.directions
    gates = GATES[node.kind]
    weights = {
        "w": numbers(both, gates * hidden, entering),
        "r": numbers(both, gates * hidden, hidden),
        "b": numbers(both, 2 * gates * hidden),
    }
    settings: dict[str, Any] = {"linear_before_reset": 1} if node.kind == "gru" else {}
    direction = "bidirectional" if both == 2 else "forward"
    made_node = made(node.kind.upper(), "x", "w", "r", "b", hidden_size=hidden, direction=direction, **settings)
    return [made_node], weights, {"x": numbers(steps, batch, entering)}
