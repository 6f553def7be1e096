"""Structures of a network: which slices of which parameters must go together so that a smaller network of the same kind stays.

The exported graph is walked once. Each dimension of each parameter starts with a unit for every index. Operations tie units:
a convolution ties its input channels to its weight's second dimension, an addition the channels of both sides. Units that are
tied form a structure: a filter with its norm, its bias and the next layer's inputs; a hidden unit of an LSTM with its gates; an
attention head. A structure is fixed where a dimension of the input or the output, or an operation without a rule, needs it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.array_types import Bools, Ints


class Units:
    """Units that may be tied to one another: a forest of sets (Tarjan 1975). Unit 0 is fixed."""

    def __init__(self) -> None:
        self._parent = np.zeros(1, np.int64)
        self._why: dict[int, str] = {}

    def new(self, count: int) -> Ints:
        """So many units, each alone."""
        first = len(self._parent)
        units = np.arange(first, first + count)
        self._parent = np.concatenate([self._parent, units])
        return units

    def roots(self, units: Ints) -> Ints:
        """The set of each unit, by one of its members; the same shape."""
        parent = self._parent
        found = parent[units]
        while not np.array_equal(above := parent[found], found):
            parent[units] = above
            found = above
        return found

    def tie(self, left: Ints, right: Ints) -> None:
        """Each unit with its partner; the shapes broadcast."""
        pairs = np.stack([side.ravel() for side in np.broadcast_arrays(left, right)], axis=1)
        for one, other in np.unique(pairs, axis=0).tolist():
            a, b = self._root(one), self._root(other)
            if a != b:
                low, high = min(a, b), max(a, b)
                self._parent[high] = low
                if high in self._why:
                    self._why.setdefault(low, self._why.pop(high))

    def fix(self, units: Ints, why: str) -> None:
        """These stay."""
        for unit in np.unique(units).tolist():
            if (root := self._root(unit)) and root not in self._why:
                self._why[root] = why
        self.tie(units, np.zeros(1, np.int64))

    def is_fixed(self, units: Ints) -> Bools:
        """Which of these stay."""
        return np.asarray(self.roots(units) == 0)

    def _root(self, unit: int) -> int:
        parent = self._parent
        while parent[unit] != unit:
            parent[unit] = parent[parent[unit]]
            unit = int(parent[unit])
        return unit


Field = Ints
"""Units of a tensor's elements, with the tensor's rank; a dimension along which they are alike has size 1."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A tensor of the graph: its shape, and what its elements belong to.

    An element is gone where any of its fields says so.

    Attributes:
        layers: of the recurrent module whose last state it is; 0 where it is none. It may leave the network, since the caller
            only gives it back. Of several layers it becomes a list, so the network may take single entries alone.
    """

    shape: tuple[int, ...]
    fields: tuple[Field, ...] = ()
    layers: int = 0


def compressed(units: Ints) -> Field:
    """The same field with size 1 along dimensions where nothing changes."""
    for dim, size in enumerate(units.shape):
        if size > 1 and (units == units.take([0], axis=dim)).all():
            units = units.take([0], axis=dim)
    return units


def vector(units: Ints, dim: int, rank: int) -> Field:
    """Units of one dimension as a field."""
    shape = [1] * rank
    shape[dim % rank] = len(units)
    return units.reshape(shape)


@dataclass(frozen=True, slots=True)
class Slice:
    """Indices of a parameter's dimension that belong to a structure."""

    parameter: str
    dim: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Structure:
    """Slices that go together.

    Attributes:
        slices: of parameters and buffers. ``layer``: the width that it belongs to: structures of one layer are alike.
    """

    number: int
    layer: str
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation with weights, which takes most of a network's time.

    Attributes:
        kind: of ATen, such as ``conv2d``. ``weights``: names of its parameters, the first one decides its widths.
        inputs: shape of what enters; ``outputs``: of what leaves.
        settings: its other operands, such as strides.
    """

    kind: str
    weights: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    settings: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """An operation without weights, whose time shrinks with what it goes over.

    Attributes:
        kind: of ATen. ``inputs``: tensors that enter. ``output``: the (first) tensor that leaves.
        settings: its other operands, such as a kernel's size.
        fused: a runtime does it with the convolution or the matrix product before it.
    """

    kind: str
    inputs: tuple[Labelled, ...]
    output: Labelled
    settings: tuple[object, ...] = ()
    fused: bool = False


@dataclass
class Structures:
    """All structures of a network that may be removed.

    Attributes:
        units: by parameter and dimension. ``every``: the structures, in the order of their first slice.
        kept: what stays whole and why, by the name of a module or an operation.
        operations: those with weights, in the order of the graph. ``steps``: the others.
    """

    forest: Units
    units: Mapping[str, Sequence[Ints]]
    kept: dict[str, str] = field(default_factory=dict)
    every: tuple[Structure, ...] = ()
    operations: list[Operation] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def collect(self) -> None:
        """Find the structures, after everything was tied."""
        slices: dict[int, list[Slice]] = defaultdict(list)
        for name, dims in self.units.items():
            for dim, units in enumerate(dims):
                roots = self.forest.roots(units)
                for root in dict.fromkeys(roots.tolist()):
                    if root:
                        slices[root].append(Slice(name, dim, tuple(np.flatnonzero(roots == root).tolist())))
        self.every = tuple(Structure(root, _layer(parts), tuple(parts)) for root, parts in slices.items())

    def layers(self) -> dict[str, list[Structure]]:
        """Structures by layer."""
        by_layer: dict[str, list[Structure]] = defaultdict(list)
        for structure in self.every:
            by_layer[structure.layer].append(structure)
        return dict(by_layer)


def _layer(parts: Iterable[Slice]) -> str:
    """Named by the first parameter that makes these outputs."""
    first = next((part for part in parts if part.dim == 0), None)
    return first.parameter if first else next(iter(parts)).parameter


__all__ = ["Field", "Labelled", "Operation", "Slice", "Step", "Structure", "Structures", "Units", "compressed", "vector"]
