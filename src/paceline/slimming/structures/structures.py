"""Structures of a network: which slices of which parameters must go together so that a smaller network of the same kind stays.

The exported graph is walked once. Each dimension of each parameter starts with a unit for every index. Operations tie units:
a convolution ties its input channels to its weight's second dimension, an addition the channels of both sides. Units that are
tied form a structure: a filter with its norm, its bias and the next layer's inputs; a hidden unit of an LSTM with its gates; an
attention head. A structure is fixed where a dimension of the input or the output, or an operation without a rule, needs it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from paceline.array_types import Bools, Ints

TIED = "tied to what has a fixed size"
"""Why a unit stays that meets one of no structure, such as a channel of the network's input."""
OUTPUT = "the output of the network"


class Units:
    """Units that may be tied to one another: a forest of sets (Tarjan 1975). Unit 0 is fixed, and so is what is tied to it."""

    def __init__(self) -> None:
        self._parent = np.zeros(1, np.int64)
        self._fixed = np.ones(1, np.bool_)
        self._why: dict[int, str] = {}

    def new(self, count: int) -> Ints:
        """So many units, each alone."""
        first = len(self._parent)
        units = np.arange(first, first + count)
        self._parent = np.concatenate([self._parent, units])
        self._fixed = np.concatenate([self._fixed, np.zeros(count, np.bool_)])
        return units

    def roots(self, units: Ints) -> Ints:
        """The set of each unit, by one of its members, 0 where it is fixed; the same shape."""
        found = self._own_roots(units)
        return np.where(self._fixed[found], 0, found)

    def tie(self, left: Ints, right: Ints) -> None:
        """Each unit with its partner; the shapes broadcast."""
        pairs = np.stack([side.ravel() for side in np.broadcast_arrays(left, right)], axis=1)
        for one, other in np.unique(pairs, axis=0).tolist():
            a, b = self._root(one), self._root(other)
            if not a or not b:
                self._fix(a or b, TIED)
            elif a != b:
                low, high = min(a, b), max(a, b)
                self._parent[high] = low
                if why := self._why.pop(high, ""):
                    self._fix(low, why)

    def fix(self, units: Ints, why: str) -> None:
        """These stay. The first reason is kept, but for that of a tie."""
        for unit in np.unique(units).tolist():
            self._fix(self._root(unit), why)

    def is_fixed(self, units: Ints) -> Bools:
        """Which of these stay."""
        return np.asarray(self.roots(units) == 0)

    def reasons(self, units: Ints) -> list[str]:
        """Why those stay that do, each reason once; unit 0 has none."""
        return list(dict.fromkeys(self._why[root] for root in self._own_roots(units).tolist() if root in self._why))

    def _fix(self, root: int, why: str) -> None:
        if root and self._why.get(root, TIED) == TIED:
            self._why[root] = why
            self._fixed[root] = True

    def _own_roots(self, units: Ints) -> Ints:
        parent = self._parent
        found = parent[units]
        while not np.array_equal(above := parent[found], found):
            parent[units] = above
            found = above
        return np.asarray(found)

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
class ParameterSlice:
    """Indices of a parameter's dimension that belong to a structure."""

    parameter: str
    dim: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RemovableStructure:
    """Slices that go together.

    Attributes:
        slices: of parameters and buffers. ``layer``: the width that it belongs to: structures of one layer are alike.
        nested: a pair of a kernel's rows or columns, around the next one of its layer: it goes before that. All may go, since
            the centre is none of them.
    """

    number: int
    layer: str
    slices: tuple[ParameterSlice, ...]
    nested: bool = False


@dataclass(frozen=True, slots=True)
class WeightedOperation:
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
class UnweightedStep:
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


@dataclass(frozen=True, slots=True)
class Branch:
    """A residual branch that is a constant where all of its inner structures are gone.

    Attributes:
        name: of the first of its layers. ``numbers``: of its structures.
        last: module whose bias is left. ``norm``: the batch norm after it, or empty. ``hollow``: its other modules.
    """

    name: str
    numbers: frozenset[int]
    last: str
    norm: str
    hollow: tuple[str, ...]


@dataclass
class Structures:
    """All structures of a network that may be removed.

    Attributes:
        units: by parameter and dimension. ``every``: the structures, in the order of their first slice.
        kept: what stays whole and why, by the name of a module or an operation.
        widths: units of what leaves each module with weights, by its name; of a module of no known kind all units.
        operations: those with weights, in the order of the graph. ``steps``: the others.
        branches: that may go whole. ``recurrent``: names of weights that a state goes through again and again.
        kernels: dimensions of weights that lose pairs from the outside in, and the names of these layers.
    """

    forest: Units
    units: Mapping[str, Sequence[Ints]]
    kept: dict[str, str] = field(default_factory=dict)
    widths: dict[str, tuple[Ints, ...]] = field(default_factory=dict)
    every: tuple[RemovableStructure, ...] = ()
    operations: list[WeightedOperation] = field(default_factory=list)
    steps: list[UnweightedStep] = field(default_factory=list)
    branches: tuple[Branch, ...] = ()
    recurrent: frozenset[str] = frozenset()
    kernels: Mapping[tuple[str, int], str] = field(default_factory=dict)

    def emptied(self, removed: Collection[int]) -> list[Branch]:
        """Branches of which nothing is left."""
        return [branch for branch in self.branches if branch.numbers.issubset(removed)]

    def only(self, every: Iterable[RemovableStructure]) -> Structures:
        """With some of the structures, and the branches that these can empty."""
        chosen = tuple(every)
        numbers = {each.number for each in chosen}
        branches = tuple(branch for branch in self.branches if branch.numbers <= numbers)
        return replace(self, every=chosen, branches=branches, kept=dict(self.kept))

    def without_kernels(self) -> Structures:
        """With those alone that make widths smaller."""
        return self.only(each for each in self.every if not each.nested)

    def collect(self) -> None:
        """Find the structures, after everything was tied."""
        slices: dict[int, list[ParameterSlice]] = defaultdict(list)
        for name, dims in self.units.items():
            for dim, units in enumerate(dims):
                roots = self.forest.roots(units)
                for root in dict.fromkeys(roots.tolist()):
                    if root:
                        slices[root].append(ParameterSlice(name, dim, tuple(np.flatnonzero(roots == root).tolist())))
        self.every = tuple(self._structure(root, parts) for root, parts in slices.items())

    def _structure(self, root: int, parts: Sequence[ParameterSlice]) -> RemovableStructure:
        kernel = self.kernels.get((parts[0].parameter, parts[0].dim))
        return RemovableStructure(root, kernel or _layer(parts), tuple(parts), kernel is not None)

    def name_whole(self, left: str) -> None:
        """Name in ``kept`` every layer whose width stays whole. One that is narrow at its input already is not named where its
        outputs are the network's.

        Args:
            left: the reason of a layer whose structures are not among ``every``.
        """
        every = [structure for structure in self.every if not structure.nested]
        removable = {structure.number for structure in every}
        narrower = {part.parameter.rpartition(".")[0] for structure in every for part in structure.slices}
        for module, widths in self.widths.items():
            units = np.concatenate(widths)
            roots = set(self.forest.roots(units).tolist())
            if roots & removable:
                continue
            reasons = [left] if any(roots) else [each for each in self.forest.reasons(units) if each != TIED] or [TIED]
            if module not in narrower or not {*reasons} <= {OUTPUT, TIED}:
                self.kept.setdefault(module, "; ".join(reasons))

    def layers(self) -> dict[str, list[RemovableStructure]]:
        """Structures by layer."""
        by_layer: dict[str, list[RemovableStructure]] = defaultdict(list)
        for structure in self.every:
            by_layer[structure.layer].append(structure)
        return dict(by_layer)


def _layer(parts: Iterable[ParameterSlice]) -> str:
    """Named by the first parameter that makes these outputs."""
    first = next((part for part in parts if part.dim == 0), None)
    return first.parameter if first else next(iter(parts)).parameter


__all__ = [
    "OUTPUT",
    "Branch",
    "Field",
    "Labelled",
    "ParameterSlice",
    "RemovableStructure",
    "Structures",
    "Units",
    "UnweightedStep",
    "WeightedOperation",
    "compressed",
    "vector",
]
