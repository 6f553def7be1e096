"""Rules of operations that take parts of tensors, or join them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from paceline.slimming.structures.rules import Ties, elementwise, merge_field, rule
from paceline.slimming.structures.structures import Field, Labelled, compressed, vector


@rule("select")
def selected(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Select the units of one index of a dimension."""
    inputs, dim, index = operands[:3]
    dim %= len(inputs.shape)
    taken = (one.take(0 if one.shape[dim] == 1 else index, axis=dim) for one in inputs.fields)
    return Labelled(shape, tuple(map(compressed, taken)))


@rule("slice")
def sliced(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Slice the units of a dimension, such as queries, keys and values of one layer. A trial finds the numbers in the code."""
    inputs, dim, start, _, step = (*operands, *(0, 0, None, 1)[len(operands) - 1 :])[:5]
    dim %= len(inputs.shape)
    length = inputs.shape[dim]
    first = min(max((start or 0) + (length if (start or 0) < 0 else 0), 0), length)
    of = slice(first, first + shape[dim] * step, step)
    cut = (one[(slice(None),) * dim + (of,)] if one.shape[dim] > 1 else one for one in inputs.fields)
    return Labelled(shape, tuple(map(compressed, cut)))


@rule("split", "chunk", "unbind", "split_with_sizes")
def parted(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> list[Labelled]:
    """Tie equal indices of all parts of a split, so that parts stay equal; sizes that differ are numbers in the code."""
    inputs, kind = operands[0], ties.name
    by: Any = None if kind == "unbind" else operands[1]
    dim = (operands[1] if len(operands) > 1 else 0) if kind == "unbind" else (*operands, 0)[2]
    dim %= len(inputs.shape)
    length = inputs.shape[dim]
    if kind == "unbind":
        return [selected(ties, (inputs, dim, index), inputs.shape[:dim] + inputs.shape[dim + 1 :]) for index in range(length)]
    sizes = list(by) if isinstance(by, list | tuple) else None
    if sizes is None:
        size = -(-length // by) if kind == "chunk" else by
        sizes = [min(size, length - start) for start in range(0, length, size)]
    ends = np.cumsum(sizes)[:-1]
    fields: list[list[Field]] = [[] for _ in sizes]
    for one in inputs.fields:
        parts = np.split(one, ends, axis=dim) if one.shape[dim] > 1 else [one] * len(sizes)
        for part, into in zip(parts, fields, strict=True):
            into.append(part)
            if len(set(sizes)) == 1:
                ties.tie(part, parts[0])
    if isinstance(by, list | tuple) and (found := [one for one in inputs.fields if one.shape[dim] > 1]):
        units = np.moveaxis(found[0], dim, 0).reshape(length, -1)[:, 0]
        ties.parts.append((ties.place, tuple(np.split(units, ends))))
    shapes = (tuple(size if d == dim else s for d, s in enumerate(inputs.shape)) for size in sizes)
    return [Labelled(each, tuple(into)) for each, into in zip(shapes, fields, strict=True)]


@rule("glu")
def gated(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Tie a dimension's first half, which is multiplied, to the second half, its gates."""
    dim = operands[1] if len(operands) > 1 else -1
    result: Labelled = elementwise(ties, parted(ties, (operands[0], shape[dim], dim), shape), shape)
    return result


@rule(
    "index",
    "index_select",
    "gather",
    "index_put",
    "index_put_",
    "scatter",
    "scatter_add",
    "index_add",
    "index_add_",
    "index_copy",
)
def indexed(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Keep the units of dimensions that tensors of indices do not address. Indices that the code states take their units."""
    inputs, at = operands[:2]
    many = isinstance(at, list | tuple)
    given = list(at) if many else [None] * (at % len(inputs.shape)) + [operands[2] if len(operands) > 2 else None]
    dims = [dim for dim, each in enumerate(at) if each is not None] if many else [at % len(inputs.shape)]
    for each in given:
        if isinstance(each, Labelled):
            ties.fix(each, "its elements are positions")
    stated = given[dims[0]].values if len(dims) == 1 and isinstance(given[dims[0]], Labelled) else None
    if ties.name in ("index", "index_select") and stated is not None and stated.ndim == 1:
        dim = dims[0]
        taken = (one.take(stated, axis=dim) if one.shape[dim] > 1 else one for one in inputs.fields)
        return Labelled(shape, tuple(map(compressed, taken)))
    kept = ties.whole(inputs, dims)
    shift = len(shape) - len(inputs.shape)
    added = [each for each in operands[2:] if isinstance(each, Labelled) and each.fields]
    if added and ties.name != "index":  # values that are written: their last dimensions are the input's
        result: Labelled = elementwise(ties, (kept, *(each for each in added if len(each.shape) <= len(shape))), shape)
        return result
    if not many:
        return Labelled(shape, tuple(one.reshape((1,) * shift + one.shape) for one in kept.fields), kept.layers)
    wide = len(shape) - len(inputs.shape) + len(dims)  # dimensions of the indices
    if wide < 0 or dims != list(range(dims[0], dims[-1] + 1)):
        ties.fix(kept)
        return Labelled(shape)
    fields = (one.reshape(*one.shape[: dims[0]], *(1,) * wide, *one.shape[dims[-1] + 1 :]) for one in kept.fields)
    return Labelled(shape, tuple(fields))


@rule("cat", "concat")
def joined(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Join the units of a concatenation along its dimension, and tie the other dimensions."""
    tensors = [tensor for tensor in operands[0] if tensor.shape != (0,)]
    rank = len(shape)
    dim = (operands[1] if len(operands) > 1 else 0) % rank
    tensors = [Labelled(tensor.shape, tuple(_live(ties, tensor))) for tensor in tensors]
    along = [[one for one in tensor.fields if one.shape[dim] > 1] for tensor in tensors]
    fields: list[Field] = []
    used: list[int] = []
    if any(along) and all(len(each) <= 1 for each in along):  # elements of heads stay apart
        wide = np.max([one.shape for each in along for one in each], axis=0)
        parts = []
        for tensor, each in zip(tensors, along, strict=True):
            inside = [one for one in tensor.fields if one.size > 1 and all(one.shape[d] in (1, wide[d]) for d in range(rank))]
            part = (each or inside or [np.zeros((1,) * rank, np.int64)])[0]
            used.append(id(part))
            parts.append(np.broadcast_to(part, (*wide[:dim], tensor.shape[dim], *wide[dim + 1 :])))
        fields = [np.concatenate(parts, dim)]
    elif any(along):
        fields = [vector(np.concatenate([ties.vector_of(tensor, dim) for tensor in tensors]), dim, rank)]
    for tensor in tensors:
        for one in tensor.fields:
            if one.shape[dim] == 1 and id(one) not in used:
                merge_field(ties, fields, one)
    return Labelled(shape, tuple(fields))


def _live(ties: Ties, tensor: Labelled) -> Iterator[Field]:
    """Yield the fields that have removable units, each with size 1 along dimensions whose units are tied."""
    for one in tensor.fields:
        roots = ties.forest.roots(one)
        if roots.any():
            yield compressed(roots)


@rule("stack")
def piled(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Join the units of a stack along a new dimension, and tie the other dimensions."""
    dim = (operands[1] if len(operands) > 1 else 0) % len(shape)
    wide = (
        Labelled((*each.shape[:dim], 1, *each.shape[dim:]), tuple(np.expand_dims(one, dim) for one in each.fields))
        for each in operands[0]
    )
    result: Labelled = elementwise(ties, list(wide), shape)
    return result
