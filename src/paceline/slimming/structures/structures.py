"""Structures of a network: slices of parameters that must be removed together to leave a smaller network of the same kind.

The exported graph is walked once. Each dimension of each parameter starts with a unit for every index. Operations tie units: a
convolution ties its input channels to its weight's second dimension, an addition the channels of both sides. Tied units form a
structure: a filter with its norm, its bias and the next layer's inputs; a hidden unit of an LSTM with its gates; an attention
head. A structure is fixed if a dimension of the input or the output, or an operation without a rule, needs it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from paceline.array_types import Ints

TIED = "tied to what has a fixed size"
"""Reason why a unit stays that is tied to no structure, such as a channel of the network's input."""
OUTPUT = "the output of the network"
PART = " (part "
"""Beginning of the name of a part of a layer, after the layer's own."""
PRODUCTS = ("addmm", "mm", "matmul")
"""Matrix products. A weight on their right has its inputs in the first dimension, such as that of GPT-2's ``Conv1D``."""


class Units:
    """Disjoint sets of tied units (Tarjan 1975). Unit 0 is fixed, and so are units tied to it."""

    def __init__(self) -> None:
        self._parent = np.zeros(1, np.int64)
        self._fixed = np.ones(1, np.bool_)
        self._why: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._parent)

    def new(self, count: int) -> Ints:
        """Return new single units."""
        first = len(self._parent)
        units = np.arange(first, first + count)
        self._parent = np.concatenate([self._parent, units])
        self._fixed = np.concatenate([self._fixed, np.zeros(count, np.bool_)])
        return units

    def roots(self, units: Ints) -> Ints:
        """Return a representative of each unit's set, 0 if fixed, in the same shape."""
        found = self._own_roots(units)
        return np.where(self._fixed[found], 0, found)

    def tie(self, left: Ints, right: Ints) -> None:
        """Tie each unit with its partner; the shapes broadcast."""
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
        """Fix units. Each keeps its first reason, unless that is a tie."""
        for unit in np.unique(units).tolist():
            self._fix(self._root(unit), why)

    def reasons(self, units: Ints) -> list[str]:
        """Return the reasons of the fixed units, each once; unit 0 has no reason."""
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
"""Units of a tensor's elements, with the tensor's rank; a dimension along which they are equal has size 1."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """Tensor of the graph with its shape and the units of its elements. An element is removed if any of its fields is.

    Attributes:
        layers: layers of the recurrent module whose last state it is; 0 for other tensors. A state may leave the network, since
            the caller only passes it back. With several layers it becomes a list, so the network may only take single entries.
        values: whole numbers that the code states, such as positions; None for other tensors.
    """

    shape: tuple[int, ...]
    fields: tuple[Field, ...] = ()
    layers: int = 0
    values: Ints | None = None


def compressed(units: Ints) -> Field:
    """Return the field with size 1 along constant dimensions."""
    for dim, size in enumerate(units.shape):
        if size > 1 and (units == units.take([0], axis=dim)).all():
            units = units.take([0], axis=dim)
    return units


def vector(units: Ints, dim: int, rank: int) -> Field:
    """Return the units of one dimension as a field (units by element)."""
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
    """Slices that are removed together.

    Attributes:
        slices: slices of parameters and buffers. ``layer``: the width that it belongs to.
        nested: a pair of a kernel's rows or columns around the next one of its layer, removed before it. All pairs may be
            removed: the centre stays.
    """

    number: int
    layer: str
    slices: tuple[ParameterSlice, ...]
    nested: bool = False

    @property
    def rows(self) -> int:
        """Number of indices of the parameter that the layer is named by."""
        name = self.layer.partition(PART)[0]
        return max((len(part.indices) for part in self.slices if part.parameter == name), default=1)


@dataclass(frozen=True, slots=True)
class WidthNumber:
    """Number in a module's code that shrinks with a layer: ``module.attribute``, now ``value``.

    Attributes:
        stays: the number does not shrink; the code would compute another one from widths that do.
        units: the number is as many as remain of these units; empty: it shrinks like the layer.
    """

    module: str
    attribute: str
    value: int
    stays: bool = False
    units: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightedOperation:
    """Operation with weights, which take most of a network's time.

    Attributes:
        kind: of ATen, such as ``conv2d``. ``weights``: names of its parameters, the first one decides its widths.
        inputs: shape of the input; ``outputs``: shape of the output.
        settings: its other operands, such as strides.
    """

    kind: str
    weights: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    settings: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class UnweightedStep:
    """An operation without weights, whose time shrinks with its operands.

    Attributes:
        kind: of ATen. ``inputs``: input tensors. ``output``: the (first) output tensor.
        settings: its other operands, such as a kernel's size.
        fused: a runtime fuses it with the convolution or the matrix product before it.
    """

    kind: str
    inputs: tuple[Labelled, ...]
    output: Labelled
    settings: tuple[object, ...] = ()
    fused: bool = False


@dataclass(frozen=True)
class Average:
    """A norm over units.

    Attributes:
        weight: parameter that is multiplied by (whole / left) to this ``power``.
        offset: number that the code adds to the weight, as Gemma does.
        epsilon: number that the code adds to the mean; the module's attributes of this value are multiplied by whole / left.
        dim: averaged dimension.
    """

    weight: str
    power: float
    offset: float
    epsilon: float | None
    dim: int = -1


@dataclass(frozen=True, slots=True)
class Branch:
    """A residual branch that is a constant without its inner structures.

    Attributes:
        name: name of the first of its layers. ``numbers``: numbers of its structures.
        last: module whose bias remains. ``norm``: the batch norm after it, or empty. ``hollow``: its other modules.
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
        kept: reasons why parts stay whole, by the name of a module or an operation.
        widths: output units of each module with weights, by its name; all units of a module of unknown kind.
        operations: operations with weights, in the order of the graph. ``steps``: the others.
        branches: removable ones. ``recurrent``: names of weights that a state passes repeatedly.
        kernels: dimensions of weights that lose pairs from the outside in, and the names of these layers.
        numbers: by layer, the numbers in the code that shrink with it.
        constants: the first unit of constants that the code creates; those of parameters come before.
        directions: dimensions of weights whose rows are divided by their lengths. A row of zeros has no direction, so rows are
            removed but never set to zero: their lengths are.
        averages: norms whose mean is over units that may go, by their weight.
        entering: dimension and units of tensors that a module is given and that depend on no weight, such as a bias for each
            head, by module and argument.
        least: by layer, the number of structures that stay, if more than one must.
        routers: weights of the routers of experts that may go whole, which are the names of the experts' layers.
        parts: units of the parts of splits into stated sizes, by the module that splits.
        rejected: reasons of structures that a trial has shown not to be removable, by number.
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
    numbers: dict[str, tuple[WidthNumber, ...]] = field(default_factory=dict)
    constants: int = 0
    directions: set[tuple[str, int]] = field(default_factory=set)
    averages: dict[str, Average] = field(default_factory=dict)
    entering: dict[tuple[str, str], tuple[int, Ints]] = field(default_factory=dict)
    least: dict[str, int] = field(default_factory=dict)
    routers: set[str] = field(default_factory=set)
    parts: list[tuple[str, tuple[Ints, ...]]] = field(default_factory=list)
    rejected: dict[int, str] = field(default_factory=dict)

    def emptied(self, removed: Collection[int]) -> list[Branch]:
        """Return the branches without remaining structures."""
        return [branch for branch in self.branches if branch.numbers.issubset(removed)]

    def only(self, every: Iterable[RemovableStructure]) -> Structures:
        """Return some of the structures, and the branches that these can empty."""
        chosen = tuple(every)
        numbers = {each.number for each in chosen}
        branches = tuple(branch for branch in self.branches if branch.numbers <= numbers)
        return replace(self, every=chosen, branches=branches, kept=dict(self.kept))

    def without_kernels(self) -> Structures:
        """Return only the structures that make widths smaller."""
        return self.only(each for each in self.every if not each.nested)

    def collect(self) -> None:
        """Find the structures after all units were tied."""
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
        router = next((part.parameter for part in parts if part.dim == 0 and part.parameter in self.routers), "")
        return RemovableStructure(root, kernel or router or _layer(parts), tuple(parts), kernel is not None)

    def name_whole(self, left: str) -> None:
        """Name in ``kept`` every layer whose width stays whole. An output layer with a narrower input is not named.

        Args:
            left: reasons of layers whose structures are not in ``every``.
        """
        every = [structure for structure in self.every if not structure.nested]
        removable = {structure.number for structure in every}
        narrower = {part.parameter.rpartition(".")[0] for structure in every for part in structure.slices}
        for module, widths in self.widths.items():
            units = np.concatenate(widths)
            roots = set(self.forest.roots(units).tolist())
            if roots & removable:
                continue
            tried = dict.fromkeys(self.rejected.get(root, left) for root in sorted(roots) if root)
            reasons = [*tried] or [each for each in self.forest.reasons(units) if each != TIED] or [TIED]
            if module not in narrower or not {*reasons} <= {OUTPUT, TIED}:
                self.kept.setdefault(module, "; ".join(reasons))

    def layers(self) -> dict[str, list[RemovableStructure]]:
        """Return the structures by layer."""
        by_layer: dict[str, list[RemovableStructure]] = defaultdict(list)
        for structure in self.every:
            by_layer[structure.layer].append(structure)
        return dict(by_layer)


def _layer(parts: Iterable[ParameterSlice]) -> str:
    """Return the name of the first parameter that makes these outputs."""
    first = next((part for part in parts if part.dim == 0), None)
    return first.parameter if first else next(iter(parts)).parameter
