"""Tables of an operation's seconds by its widths: what enters and what leaves it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from paceline.array_types import Array, Ints
from paceline.slimming.onnx_nodes import ALIGNED, GATES, Node, Window, is_blocked, seconds, whole_blocks
from paceline.slimming.structures import Operation, Structures

ENTERING, LEAVING = 3, 5
"""So many widths are timed from an eighth to all. Time grows evenly with what enters; kernels hold parts of what leaves."""
LARGE = 2**24
"""Bytes of weights from which time follows them, so that ``FEW`` widths will do; to make many would take seconds each."""
FEW = 2, 3
WORD = 4
"""Bytes of a weight."""


@dataclass(frozen=True, slots=True)
class Part:
    """An operation with weights, or one layer of a recurrent one.

    Attributes:
        weight: the parameter whose dimensions are the widths. ``gates``: rows of it for each unit that leaves.
        node: as it is in the whole network.
    """

    weight: str
    node: Node
    gates: int = 1

    @property
    def name(self) -> str:
        """The module's, where its weight is called so; else the weight's."""
        return self.weight.removesuffix(".weight")

    @property
    def entering(self) -> int:
        """Channels or features of the whole network."""
        return self.node.inputs[-1] if self.node.window is None else self.node.inputs[1]

    def at(self, entering: int, leaving: int) -> Node:
        """The node of other widths."""
        node, window = self.node, self.node.window
        if window is None:
            return replace(node, inputs=(*node.inputs[:-1], entering), leaving=leaving)
        if window.groups > 1:  # whole groups go
            window = replace(window, groups=max(window.groups * leaving // node.leaving, 1))
        return replace(node, inputs=(node.inputs[0], entering, *node.inputs[2:]), leaving=leaving, window=window)

    def as_two(self, rank: int) -> tuple[Node, Node] | None:
        """A layer of low rank: to as many outputs as the rank, then a single point to all outputs; None for other kinds."""
        node, window = self.node, self.node.window
        if node.kind == "linear":
            return replace(node, leaving=rank, bias=False), replace(node, inputs=(*node.inputs[:-1], rank))
        if node.kind != "conv" or window is None or window.groups > 1:
            return None
        ones = (1,) * len(window.kernel)
        point = Window(ones, ones, (0,) * len(ones), ones)
        return replace(node, leaving=rank), Node("conv", (node.inputs[0], rank, *node.size), node.leaving, point)

    def weight_bytes(self, entering: int, leaving: int) -> float:
        """Of these widths."""
        window = self.node.window
        each = prod(window.kernel) / window.groups * (self.node.leaving / leaving if window.groups > 1 else 1) if window else 1
        columns = entering + (leaving if self.gates > 1 else 0)
        return WORD * leaving * columns * each * self.gates * self.node.directions


def parts_of(structures: Structures) -> list[Part]:
    """The operations of a network, as they are timed."""
    return [part for operation in structures.operations for part in _parts(operation, structures)]


def _parts(operation: Operation, structures: Structures) -> Iterator[Part]:
    weight = operation.weights[0]
    out = len(structures.units[weight][0])
    if operation.kind == "linear":
        yield Part(weight, Node("linear", operation.inputs, out, bias=len(operation.weights) > 1))
    elif operation.kind in ("conv1d", "conv2d"):
        yield Part(weight, Node("conv", operation.inputs, out, _window(operation, structures)))
    elif operation.kind == "conv_transpose2d":
        yield Part(
            weight, Node("conv_transpose", operation.inputs, operation.outputs[1], _transposed_window(operation, structures))
        )
    else:
        _, layers, _, _, both, first = operation.settings[:6]
        batch, steps = operation.inputs[:2] if first else operation.inputs[1::-1]
        gates, count = GATES[operation.kind], int(str(layers))
        for weight in operation.weights[:: len(operation.weights) // count]:
            rows, columns = (len(units) for units in structures.units[weight][:2])
            shape = (batch, steps, columns)
            yield Part(weight, Node(operation.kind, shape, rows // gates, directions=2 if both else 1), gates)


def _window(operation: Operation, structures: Structures) -> Window:
    units = structures.units[operation.weights[0]]
    kernel = tuple(len(each) for each in units[2:])
    settings: list[Any] = [each for each in operation.settings if each is not None]
    ones = (1,) * len(kernel)
    strides, padding, dilations, groups = (*settings, *(ones, (0,) * len(kernel), ones, 1)[len(settings) :])[:4]
    many = [tuple(each) if isinstance(each, Sequence) else (each,) for each in (strides, padding, dilations)]
    strides, padding, dilations = (each * len(kernel) if len(each) == 1 else each for each in many)
    return Window(kernel, strides, padding, dilations, int(groups))


def _transposed_window(operation: Operation, structures: Structures) -> Window:
    kernel = tuple(len(each) for each in structures.units[operation.weights[0]][2:])
    given: list[Any] = [each for each in operation.settings if each is not None]
    strides, padding, extra, groups, dilations = (*given, *((1, 1), (0, 0), (0, 0), 1, (1, 1))[len(given) :])[:5]
    strides, padding, extra, dilations = (tuple(each) * (2 // len(each)) for each in (strides, padding, extra, dilations))
    return Window(kernel, strides, padding, dilations, groups, extra)


@dataclass(frozen=True, slots=True)
class Table:
    """Seconds of an operation at some widths: a row for each of ``entering``, a column for each of ``leaving``.

    Attributes:
        unaligned: how many times as long it takes where its channels do not fit the runtime's blocked form.
    """

    entering: Ints
    leaving: Ints
    times: Array
    unaligned: float = 1.0

    def at(self, entering: float, leaving: float) -> float:
        """Seconds; between the widths that were timed, on a straight line."""
        row, down = _between(self.entering, entering)
        column, right = _between(self.leaving, leaving)
        block = self.times[row : row + 2, column : column + 2]
        upper, *lower = (each[0] + (each[-1] - each[0]) * right for each in block.tolist())
        return float(upper + (lower[0] - upper) * down) if lower else float(upper)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        lists = {name: getattr(self, name).tolist() for name in ("entering", "leaving", "times")}
        return {**lists, "unaligned": self.unaligned}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Table:
        """The inverse of ``to_json``."""
        entering, leaving = (np.array(data[name], np.int64) for name in ("entering", "leaving"))
        times = np.array(data["times"], float).reshape(len(entering), len(leaving))
        return cls(entering, leaving, times, float(data["unaligned"]))


def _between(points: Ints, width: float) -> tuple[int, float]:
    """The point before a width, and how far the width is on the way to the next; the ends hold beyond them."""
    if len(points) == 1:
        return 0, 0.0
    number = min(max(int(np.searchsorted(points, width, "right")) - 1, 0), len(points) - 2)
    return number, float(np.clip((width - points[number]) / (points[number + 1] - points[number]), 0.0, 1.0))


@dataclass(frozen=True, slots=True)
class Ranges:
    """Least widths that a part may come to."""

    entering: int
    leaving: int


def measured_table(part: Part, least: Ranges, round_to: int, threads: int = 1) -> Table:
    """Time a part at widths from the least to all."""
    node = part.node
    step = whole_blocks(1) if _in_blocks(part) else round_to
    if node.kind == "conv_transpose":  # it gathers pixels one by one: less than a vector costs less
        step = ALIGNED
    points = FEW if part.weight_bytes(part.entering, node.leaving) > LARGE else (ENTERING, LEAVING)
    leaving = _grid(least.leaving, node.leaving, step, points[1])
    if node.window is not None and node.window.groups > 1:
        each = [(int(n) * part.entering // node.leaving, int(n)) for n in leaving]
        times = np.array([[seconds(part.at(*widths), threads) for widths in each]])
        return Table(np.array([part.entering]), leaving, times)
    entering = _grid(least.entering, part.entering, step, points[0])
    if _in_blocks(part) and least.entering < step <= part.entering:  # less than a block is computed in another way
        entering = np.unique([max(step // 4, 1), step // 2, *entering])
    times = np.array([[seconds(part.at(int(n), int(m)), threads) for m in leaving] for n in entering])
    table = Table(entering, leaving, times)
    if not _in_blocks(part) or least.entering == part.entering:
        return table
    odd = seconds(part.at(part.entering - 1, node.leaving), threads)
    return replace(table, unaligned=max(odd / times[-1, -1], 1.0))


def table_seconds(part: Part, table: Table, entering: int, leaving: int) -> float:
    """Of a part at these widths; 0 where nothing enters or leaves."""
    if not entering or not leaving:
        return 0.0
    if not _in_blocks(part):
        return table.at(entering, leaving)
    if entering < whole_blocks(1):
        return table.at(entering, whole_blocks(leaving))
    factor = table.unaligned if entering % ALIGNED else 1.0
    return factor * table.at(whole_blocks(entering), whole_blocks(leaving))


def _in_blocks(part: Part) -> bool:
    """Whether the whole network's convolution is in blocks, or would be but for channels that are no multiple."""
    window = part.node.window
    return (
        part.node.kind == "conv"
        and window is not None
        and is_blocked(whole_blocks(part.entering), whole_blocks(part.node.leaving), window)
    )


def _grid(least: int, width: int, step: int, points: int) -> Ints:
    """Widths from the least, an eighth at most, in multiples where they can be."""
    least = max(least, -(-width // 8), min(step, width))
    if least >= width:
        return np.array([width])
    if width <= step:
        return np.unique([max(1, width // 2), width])
    spaced = np.geomspace(least, width, points)[:-1]
    return np.unique([*(np.maximum(np.round(spaced / step), 1) * step).astype(int), width])


__all__ = ["WORD", "Part", "Ranges", "Table", "measured_table", "parts_of", "table_seconds"]
