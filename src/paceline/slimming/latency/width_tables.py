"""Tables of an operation's seconds by its input and output widths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from paceline.array_types import Array, Ints
from paceline.slimming.latency.onnx_nodes import ALIGNED, GATES, ConvolutionWindow, OnnxNode, is_blocked, seconds, whole_blocks
from paceline.slimming.structures.structures import PRODUCTS, Structures, WeightedOperation

ENTERING, LEAVING = 3, 5
"""Number of widths timed from an eighth to all. Time grows evenly with the input; kernels hold parts of the output."""
LARGE = 2**24
"""Bytes of weights from which on time is proportional to them, so ``FEW`` widths suffice; each takes seconds to build."""
FEW = 2, 3
KERNELS = 3
"""Number of kernel sizes timed along each dimension."""
WORD = 4
"""Bytes of a weight."""


@dataclass(frozen=True, slots=True)
class Part:
    """An operation with weights, or one layer of a recurrent one.

    Attributes:
        weight: the parameter whose dimensions are the widths. ``gates``: its rows per output unit.
        node: in the whole network.
        inputs_first: whether the weight's first dimension is the inputs.
    """

    weight: str
    node: OnnxNode
    gates: int = 1
    inputs_first: bool = False

    @property
    def name(self) -> str:
        """Name of the module if the parameter is its weight, else of the parameter."""
        return self.weight.removesuffix(".weight")

    @property
    def entering(self) -> int:
        """Number of input channels or features in the whole network."""
        return self.node.inputs[-1] if self.node.window is None else self.node.inputs[1]

    def at(self, entering: int, leaving: int, kernel: tuple[int, ...] = ()) -> OnnxNode:
        """Return the node with other widths, and a smaller kernel if one is given."""
        node, window = self.node, self.node.window
        if window is None:
            return replace(node, inputs=(*node.inputs[:-1], entering), leaving=leaving)
        if kernel:
            lost = zip(window.padding, window.dilations, window.kernel, kernel, strict=True)
            padding = tuple(pad - apart * (old - new) // 2 for pad, apart, old, new in lost)
            window = replace(window, kernel=kernel, padding=padding)
        if window.groups > 1:  # whole groups go
            window = replace(window, groups=max(window.groups * leaving // node.leaving, 1))
        return replace(node, inputs=(node.inputs[0], entering, *node.inputs[2:]), leaving=leaving, window=window)

    def as_two(self, rank: int) -> tuple[OnnxNode, OnnxNode] | None:
        """Return both nodes of a low-rank layer: to rank outputs, then pointwise to all. None for other kinds."""
        node, window = self.node, self.node.window
        if node.kind == "linear":
            return replace(node, leaving=rank, bias=False), replace(node, inputs=(*node.inputs[:-1], rank))
        if node.kind != "conv" or window is None or window.groups > 1:
            return None
        ones = (1,) * len(window.kernel)
        point = ConvolutionWindow(ones, ones, (0,) * len(ones), ones)
        return replace(node, leaving=rank), OnnxNode("conv", (node.inputs[0], rank, *node.size), node.leaving, point)

    def weight_bytes(self, entering: int, leaving: int, kernel: tuple[int, ...] = ()) -> float:
        """Return the size at these widths."""
        window = self.node.window
        each = 1.0
        if window is not None:
            each = prod(kernel or window.kernel) / window.groups * (self.node.leaving / leaving if window.groups > 1 else 1)
        columns = entering + (leaving if self.gates > 1 else 0)
        return WORD * leaving * columns * each * self.gates * self.node.directions


def parts_of(structures: Structures) -> list[Part]:
    """Return the operations of a network to be timed."""
    return [part for operation in structures.operations for part in _parts(operation, structures)]


def _parts(operation: WeightedOperation, structures: Structures) -> Iterator[Part]:
    weight = operation.weights[0]
    out = len(structures.units[weight][0])
    if operation.kind in PRODUCTS:
        width = len(structures.units[weight][1])
        yield Part(weight, OnnxNode("linear", operation.inputs, width, bias=len(operation.weights) > 1), inputs_first=True)
    elif operation.kind == "linear":
        yield Part(weight, OnnxNode("linear", operation.inputs, out, bias=len(operation.weights) > 1))
    elif operation.kind in ("conv1d", "conv2d"):
        yield Part(weight, OnnxNode("conv", operation.inputs, out, _window(operation, structures)))
    elif operation.kind == "conv_transpose2d":
        yield Part(
            weight,
            OnnxNode("conv_transpose", operation.inputs, operation.outputs[1], _transposed_window(operation, structures)),
            inputs_first=True,
        )
    else:
        _, layers, _, _, both, first = operation.settings[:6]
        batch, steps = operation.inputs[:2] if first else operation.inputs[1::-1]
        gates, count = GATES[operation.kind], int(str(layers))
        for weight in operation.weights[:: len(operation.weights) // count]:
            rows, columns = (len(units) for units in structures.units[weight][:2])
            shape = (batch, steps, columns)
            yield Part(weight, OnnxNode(operation.kind, shape, rows // gates, directions=2 if both else 1), gates)


def _window(operation: WeightedOperation, structures: Structures) -> ConvolutionWindow:
    units = structures.units[operation.weights[0]]
    kernel = tuple(len(each) for each in units[2:])
    settings: list[Any] = [each for each in operation.settings if each is not None]
    ones = (1,) * len(kernel)
    strides, padding, dilations, groups = (*settings, *(ones, (0,) * len(kernel), ones, 1)[len(settings) :])[:4]
    if isinstance(padding, str):
        given = dilations if isinstance(dilations, Sequence) else (dilations,)
        padding = tuple(apart * (size - 1) // 2 * (padding == "same") for apart, size in zip(given, kernel, strict=True))
    many = [tuple(each) if isinstance(each, Sequence) else (each,) for each in (strides, padding, dilations)]
    strides, padding, dilations = (each * len(kernel) if len(each) == 1 else each for each in many)
    return ConvolutionWindow(kernel, strides, padding, dilations, int(groups))


def _transposed_window(operation: WeightedOperation, structures: Structures) -> ConvolutionWindow:
    kernel = tuple(len(each) for each in structures.units[operation.weights[0]][2:])
    given: list[Any] = [each for each in operation.settings if each is not None]
    strides, padding, extra, groups, dilations = (*given, *((1, 1), (0, 0), (0, 0), 1, (1, 1))[len(given) :])[:5]
    strides, padding, extra, dilations = (tuple(each) * (2 // len(each)) for each in (strides, padding, extra, dilations))
    return ConvolutionWindow(kernel, strides, padding, dilations, groups, extra)


@dataclass(frozen=True, slots=True)
class Grid:
    """Values on a grid with one dimension per axis."""

    axes: tuple[Ints, ...]
    values: Array

    def at(self, *place: float) -> float:
        """Interpolate linearly between the points; constant beyond the ends."""
        values: Any = self.values
        for axis, each in zip(self.axes, place, strict=True):
            number, share = _position(axis, each)
            values = values[number] + (values[number + 1] - values[number]) * share if share else values[number]
        return float(values)

    def to_json(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {"axes": [axis.tolist() for axis in self.axes], "values": self.values.tolist()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Grid:
        """Invert ``to_json``."""
        axes = tuple(np.array(axis, np.int64) for axis in data["axes"])
        return cls(axes, np.array(data["values"], float).reshape([len(axis) for axis in axes]))


@dataclass(frozen=True, slots=True)
class WidthTable:
    """Seconds of an operation at some widths: a row for each input width, a column for each output width.

    Attributes:
        unaligned: slowdown if its channels do not fit the runtime's blocked form.
        kernels: relative time of smaller kernels; None if the kernel stays.
    """

    entering: Ints
    leaving: Ints
    times: Array
    unaligned: float = 1.0
    kernels: Grid | None = None

    def at(self, entering: float, leaving: float, kernel: tuple[int, ...] = ()) -> float:
        """Return seconds, linearly interpolated between the timed widths."""
        whole = Grid((self.entering, self.leaving), self.times).at(entering, leaving)
        return whole * self.kernels.at(entering, leaving, *kernel) if self.kernels and kernel else whole

    def to_json(self) -> dict[str, Any]:
        """Convert to plain data."""
        lists = {name: getattr(self, name).tolist() for name in ("entering", "leaving", "times")}
        return {**lists, "unaligned": self.unaligned, "kernels": self.kernels.to_json() if self.kernels else None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WidthTable:
        """Invert ``to_json``."""
        entering, leaving = (np.array(data[name], np.int64) for name in ("entering", "leaving"))
        times = np.array(data["times"], float).reshape(len(entering), len(leaving))
        kernels = None if data["kernels"] is None else Grid.from_json(data["kernels"])
        return cls(entering, leaving, times, float(data["unaligned"]), kernels)


def _position(points: Ints, width: float) -> tuple[int, float]:
    """Return the point before a width, and the fraction of the distance to the next; constant beyond the ends."""
    if len(points) == 1:
        return 0, 0.0
    number = min(max(int(np.searchsorted(points, width, "right")) - 1, 0), len(points) - 2)
    return number, float(np.clip((width - points[number]) / (points[number + 1] - points[number]), 0.0, 1.0))


@dataclass(frozen=True, slots=True)
class Ranges:
    """Least widths of a part, and its least kernel; () without a kernel that may shrink."""

    entering: int
    leaving: int
    kernel: tuple[int, ...] = ()


def measured_table(part: Part, least: Ranges, round_to: int, threads: int = 1) -> WidthTable:
    """Time a part at widths from the least to the full one, and its smaller kernels at these two."""
    table = _measured_widths(part, least, round_to, threads)
    window = part.node.window
    if window is None or least.kernel in ((), window.kernel):
        return table
    last, right = len(table.entering) - 1, len(table.leaving) - 1
    first = (
        int(np.searchsorted(table.entering, whole_blocks(1))) if _in_blocks(part) else 0
    )  # smaller widths use another algorithm
    rows, columns = np.unique([min(first, last), last]), np.unique([0, right])
    axes = table.entering[rows], table.leaving[columns], *map(_odd_sizes, least.kernel, window.kernel)
    values = np.ones([len(axis) for axis in axes])
    for place in np.ndindex(*values.shape):
        entering, leaving, *kernel = (int(axis[number]) for axis, number in zip(axes, place, strict=True))
        if tuple(kernel) != window.kernel:
            if window.groups > 1:
                entering = leaving * part.entering // part.node.leaving
            whole = table.times[rows[place[0]], columns[place[1]]]
            values[place] = seconds(part.at(entering, leaving, tuple(kernel)), threads) / whole
    return replace(table, kernels=Grid(axes, values))


def _odd_sizes(least: int, size: int) -> Ints:
    """Return at most ``KERNELS`` sizes of a kernel, which differ by pairs of rows."""
    pairs = np.unique(np.round(np.linspace(0, (size - least) // 2, KERNELS)).astype(int))
    return least + 2 * pairs


def _measured_widths(part: Part, least: Ranges, round_to: int, threads: int) -> WidthTable:
    node = part.node
    step = whole_blocks(1) if _in_blocks(part) else round_to
    if node.kind == "conv_transpose":  # it gathers pixels one by one: a part of a vector costs less
        step = ALIGNED
    points = FEW if part.weight_bytes(part.entering, node.leaving) > LARGE else (ENTERING, LEAVING)
    if node.window is not None and node.window.groups > 1:
        of_group = node.leaving // node.window.groups
        leaving = of_group * _grid(-(-least.leaving // of_group), node.window.groups, -(-step // of_group), points[1])
        each = [(int(n) * part.entering // node.leaving, int(n)) for n in leaving]
        times = np.array([[seconds(part.at(*widths), threads) for widths in each]])
        return WidthTable(np.array([part.entering]), leaving, times)
    leaving = _grid(least.leaving, node.leaving, step, points[1])
    entering = _grid(least.entering, part.entering, step, points[0])
    if _in_blocks(part) and least.entering < step <= part.entering:  # less than a block uses another algorithm
        entering = np.unique([max(step // 4, 1), step // 2, *entering])
    times = np.array([[seconds(part.at(int(n), int(m)), threads) for m in leaving] for n in entering])
    table = WidthTable(entering, leaving, times)
    if not _in_blocks(part) or least.entering == part.entering:
        return table
    odd = seconds(part.at(part.entering - 1, node.leaving), threads)
    return replace(table, unaligned=max(odd / times[-1, -1], 1.0))


def table_seconds(part: Part, table: WidthTable, entering: int, leaving: int, kernel: tuple[int, ...] = ()) -> float:
    """Return the seconds of a part at these widths; 0 without inputs or outputs."""
    if not entering or not leaving:
        return 0.0
    if not _in_blocks(part):
        return table.at(entering, leaving, kernel)
    if entering < whole_blocks(1):
        return table.at(entering, whole_blocks(leaving), kernel)
    factor = table.unaligned if entering % ALIGNED else 1.0
    return factor * table.at(whole_blocks(entering), whole_blocks(leaving), kernel)


def _in_blocks(part: Part) -> bool:
    """Return whether a convolution of the whole network is in blocks, or would be with channels of a legal multiple."""
    window = part.node.window
    return (
        part.node.kind == "conv"
        and window is not None
        and is_blocked(whole_blocks(part.entering), whole_blocks(part.node.leaving), window)
    )


def _grid(least: int, width: int, step: int, points: int) -> Ints:
    """Return widths from the least one, at most an eighth, in multiples if possible."""
    least = max(least, -(-width // 8), min(step, width))
    if least >= width:
        return np.array([width])
    if width <= step:
        return np.unique([max(1, width // 2), width])
    spaced = np.geomspace(least, width, points)[:-1]
    return np.unique([*(np.maximum(np.round(spaced / step), 1) * step).astype(int), width])
