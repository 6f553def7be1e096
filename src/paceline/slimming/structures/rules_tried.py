"""Rules that are found by running an operation on random numbers, for operations that have none.

Two kinds are recognised. An operation that only moves elements, such as a pixel shuffle, moves their units too. Another one may
treat the indices of a dimension apart: without some indices its result is the same without them. Then its units pass through,
and those of other operands with the same dimension are tied to them. All other dimensions stay whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map

from paceline.array_types import Ints
from paceline.slimming.structures.rules import Ties, elementwise
from paceline.slimming.structures.structures import Field, Labelled, compressed

MOST_ELEMENTS = 1 << 24
"""Elements of the largest operand that is tried."""
MOST_FITS = 16
"""Ways to match the dimensions of several operands that are tried."""
Dims = tuple[int | None, ...]
"""For each tensor among the operands, the dimension that is one with the first's; None if it has no such dimension."""


def tried(node: fx.Node, operands: Sequence[Labelled], ties: Ties) -> Labelled | list[Labelled] | None:
    """Return the labelled results of an operation, or None if it cannot be run alone.

    Args:
        operands: its tensors, in the order of its inputs.
    """
    sources = list(node.all_input_nodes)
    values = [each.meta.get("val") for each in sources]
    given = [each for each in values if isinstance(each, Tensor) and _is_small(each)]
    if not len(sources) == len(operands) == len(given):
        return None
    trial = _OperationTrial(node, sources, given)
    whole = trial.results(trial.tensors)
    if not whole:
        return None
    if len(operands) == 1 and len(whole) == 1 and (moved := _moved(trial, operands[0], whole[0])) is not None:
        return moved
    fits = _fits(trial, whole)
    results = [_labelled(ties, operands, fits, number, tuple(each.shape)) for number, each in enumerate(whole)]
    for tensor in operands if not fits else ():
        ties.fix(tensor)
    return results if isinstance(node.meta.get("val"), list | tuple) else results[0]


def _is_small(tensor: Tensor) -> bool:
    return all(isinstance(size, int) for size in tensor.shape) and tensor.numel() <= MOST_ELEMENTS


class _OperationTrial:
    """An operation that runs on other tensors.

    Attributes:
        tensors: random numbers in the shapes of its operands.
    """

    def __init__(self, node: fx.Node, sources: Sequence[fx.Node], given: Sequence[Tensor]) -> None:
        self._node, self._sources = node, sources
        generator = torch.Generator().manual_seed(0)
        self.tensors = [_drawn(each, generator) for each in given]

    def results(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors that the operation returns; none if it fails."""
        values = dict(zip(self._sources, (each.clone() for each in tensors), strict=True))  # some change their operand

        def of(value: Any) -> Any:
            return values.get(value, value) if isinstance(value, fx.Node) else value

        args, kwargs = (tree_map(of, each) for each in (self._node.args, self._node.kwargs))
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                found = self._node.target(*args, **{**kwargs, **({"device": "cpu"} if kwargs.get("device") else {})})  # type: ignore[operator]
        except Exception:  # an operation may raise anything
            return []
        found = list(found) if isinstance(found, list | tuple) else [found]
        return found if all(isinstance(each, Tensor) for each in found) else []


def _drawn(like: Tensor, generator: torch.Generator) -> Tensor:
    shape = tuple(like.shape)
    if like.dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if not (like.is_floating_point() or like.is_complex()):
        return torch.zeros(shape, dtype=like.dtype)  # the first of any positions
    return torch.randn(shape, generator=generator, dtype=torch.complex64 if like.is_complex() else torch.float32)


def _moved(trial: _OperationTrial, operand: Labelled, whole: Tensor) -> Labelled | None:
    """Return the result of an operation that moves elements, and adds zeros at most."""
    given = trial.tensors[0]
    if not given.is_floating_point() or not whole.is_floating_point():
        return None
    places = trial.results([torch.arange(1.0, given.numel() + 1).reshape(given.shape)])
    if not places or not bool(((places[0] >= 0) & (places[0] <= given.numel()) & (places[0] == places[0].round())).all()):
        return None
    sources = places[0].long().numpy()
    with_zero = torch.cat([given.new_zeros(1), given.flatten()])
    if not torch.equal(with_zero[torch.from_numpy(sources)], whole):
        return None
    fields = [_gathered(np.broadcast_to(one, operand.shape).ravel(), sources) for one in operand.fields]
    return None if any(each is None for each in fields) else Labelled(tuple(whole.shape), tuple(fields))  # type: ignore[arg-type]


def _gathered(units: Ints, sources: Ints) -> Field | None:
    """Return units by element of the result. Zeros between them belong to any unit of their line; None if there are several."""
    found = np.concatenate([[-1], units])[sources]
    for dim in range(found.ndim):
        if not (free := found < 0).any():
            break
        most = found.max(dim, keepdims=True)
        least = np.where(free, np.iinfo(np.int64).max, found).min(dim, keepdims=True)
        if (most == least)[most >= 0].all():
            found = np.where(free, most, found)
    return None if (found < 0).any() else compressed(np.ascontiguousarray(found))


def _fits(trial: _OperationTrial, whole: Sequence[Tensor]) -> list[tuple[Dims, tuple[int, ...]]]:
    """Return the dimensions whose indices are apart: those of the operands, and those of the results."""
    shapes = [tuple(each.shape) for each in trial.tensors]
    first = max(shapes, key=len)
    found = []
    for dim, size in enumerate(first):
        ways = product(product(*(_same(shape, first, dim) for shape in shapes)), _results_dims(whole, first, dim))
        for dims, leaving in islice(ways, MOST_FITS) if size > 1 else ():
            if _is_apart(trial, whole, dims, leaving, size):
                found.append((dims, leaving))
                break
    return found


def _same(shape: tuple[int, ...], first: tuple[int, ...], dim: int) -> list[int | None]:
    """Return the dimensions of an operand that may be this one: counted from the end, from the front, its only one, or none."""
    if shape == first:
        return [dim]
    fit = [dim - len(first) + len(shape), dim, *([0] if len(shape) == 1 else [])]
    return [*dict.fromkeys(each for each in fit if 0 <= each < len(shape) and shape[each] == first[dim]), None]


def _results_dims(whole: Sequence[Tensor], first: tuple[int, ...], dim: int) -> Iterator[tuple[int, ...]]:
    for move in dict.fromkeys((0, whole[0].dim() - len(first))):
        leaving = tuple(dim + move for _ in whole)
        if all(0 <= at < each.dim() and each.shape[at] == first[dim] for at, each in zip(leaving, whole, strict=True)):
            yield leaving


def _is_apart(trial: _OperationTrial, whole: Sequence[Tensor], dims: Dims, leaving: tuple[int, ...], size: int) -> bool:
    """Return whether the operation without some indices returns the same without them."""
    if all(each is None for each in dims):
        return False
    for stay in (torch.arange(1, size), torch.arange(0, size, 2)):
        some = [each if at is None else each.index_select(at, stay) for each, at in zip(trial.tensors, dims, strict=True)]
        found = trial.results(some)
        wanted = [each.index_select(at, stay) for each, at in zip(whole, leaving, strict=True)]
        if [each.shape for each in found] != [each.shape for each in wanted]:
            return False
        if not all(torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) for a, b in zip(found, wanted, strict=True)):
            return False
    return True


def _labelled(
    ties: Ties,
    operands: Sequence[Labelled],
    fits: Sequence[tuple[Dims, tuple[int, ...]]],
    number: int,
    shape: tuple[int, ...],
) -> Labelled:
    """Return a result: the operands' units in its dimensions, tied where several operands have the same."""
    laid = []
    for place, operand in enumerate(operands):
        to = {dims[place]: leaving[number] for dims, leaving in fits if dims[place] is not None}
        left = ties.whole(operand, [dim for dim, size in enumerate(operand.shape) if dim not in to and size > 1])
        sizes = [1] * len(shape)
        for dim, at in to.items():
            sizes[at] = operand.shape[dim]  # type: ignore[index]
        order = sorted((dim for dim in to if dim is not None), key=lambda dim: to[dim])
        rest = [dim for dim in range(len(operand.shape)) if dim not in to]
        fields = [_in_order(one.transpose(*rest, *order), [to[dim] for dim in order], len(shape)) for one in left.fields]
        if fields or any(size > 1 for size in sizes):
            laid.append(Labelled(tuple(sizes), tuple(fields)))
    if not laid:
        return Labelled(shape)
    result: Labelled = elementwise(ties, laid, shape)
    return result


def _in_order(units: Field, dims: Sequence[int], rank: int) -> Field:
    """Return units whose last dimensions are these dimensions of a result, in rising order."""
    sizes = [1] * rank
    for dim, size in zip(dims, units.shape[units.ndim - len(dims) :], strict=True):
        sizes[dim] = size
    return units.reshape(sizes)
