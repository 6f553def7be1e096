"""Tensors divided among ranks in checkpoints: each rank's rows in its own part, and any rows read from all parts.

A state is nested mappings. Torch shards the first dimension: rank i has the rows from ``i * ceil(rows / ranks)`` on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from paceline.errors import UserError

Rows = tuple[Tensor, int, tuple[int, ...]]
"""Rows of a tensor, the number of the first, and the shape of the whole."""


class SharedTensor:
    """Tensor whose rows are in the parts of a checkpoint.

    Args:
        pieces: its rows, in any order.

    Raises:
        ValueError: rows are missing, duplicate, or of another shape.
    """

    def __init__(self, pieces: Sequence[Rows]) -> None:
        self._pieces = sorted((piece for piece in pieces if len(piece[0])), key=lambda piece: piece[1]) or list(pieces[:1])
        self.shape = torch.Size(self._pieces[0][2])
        ends = [0, *(first + len(rows) for rows, first, _ in self._pieces)]
        shapes = {(tuple(shape), *rows.shape[1:], rows.dtype) for rows, _, shape in self._pieces}
        whole = len(shapes) == 1 and self._pieces[0][0].shape[1:] == self.shape[1:]
        if not whole or [first for _, first, _ in self._pieces] != ends[:-1] or ends[-1] != self.shape[0]:
            found = ", ".join(f"{first} to {first + len(rows)}" for rows, first, _ in self._pieces)
            raise ValueError(f"rows {found} are no tensor of the shape {tuple(self.shape)}")

    def rows(self, first: int, end: int) -> Tensor:
        """Return a copy of rows ``first`` up to ``end``."""
        some = self._pieces[0][0]
        result = some.new_empty((end - first, *self.shape[1:]))
        for rows, at, _ in self._pieces:
            low, high = max(first, at), min(end, at + len(rows))
            if low < high:
                result[low - first : high - first] = rows[low - at : high - at]
        return result

    def whole(self) -> Tensor:
        """Return a copy of all rows."""
        return self.rows(0, self.shape[0])


def rows_of(state: Any) -> Any:
    """Return this rank's ``Rows`` of every sharded tensor in a state, in equal mappings. They share the tensor's memory."""
    if _is_shared(state):
        first, _ = _own_rows(state)
        return state.to_local(), first, tuple(state.shape)
    if not isinstance(state, Mapping):
        return {}
    return {name: rows for name, value in state.items() if (rows := rows_of(value))}


def without_shards(state: Any) -> Any:
    """Return a state without its sharded tensors."""
    if isinstance(state, Mapping):
        return {name: without_shards(value) for name, value in state.items() if not _is_shared(value)}
    return state.to_local() if isinstance(state, DTensor) else state


def joined(state: Any, parts: Sequence[Any]) -> Any:
    """Return the original state from the results of ``without_shards`` and, on each rank, of ``rows_of``. Raises ValueError as
    ``SharedTensor``.

    Returns:
        The state with a ``SharedTensor`` in each sharded tensor's place.
    """
    if not parts:
        return state
    if isinstance(parts[0], tuple):
        return SharedTensor(parts)
    result = dict(state or {})
    for name in {name: None for part in parts for name in part}:
        result[name] = joined(result.get(name), [part[name] for part in parts if name in part])
    return result


def whole(state: Any) -> Any:
    """Return a state with each ``SharedTensor`` replaced by the whole tensor."""
    if isinstance(state, SharedTensor):
        return state.whole()
    return {name: whole(value) for name, value in state.items()} if isinstance(state, Mapping) else state


def as_sharded(value: Any, like: Any) -> Any:
    """Return a ``SharedTensor`` or a whole tensor in the shards of ``like``; values of another shape, such as a count of steps,
    are unchanged.

    Raises:
        UserError: a ``SharedTensor`` of another shape.
    """
    if isinstance(value, SharedTensor) and value.shape != like.shape:
        raise UserError(
            f"the checkpoint has a tensor of the shape {tuple(value.shape)}, the model has the shape {tuple(like.shape)}",
            "resume with the network that wrote it",
        )
    if not isinstance(like, DTensor) or not isinstance(value, SharedTensor | Tensor) or value.shape != like.shape:
        return value
    mesh, placements = like.device_mesh, like.placements
    if isinstance(value, Tensor):
        return distribute_tensor(value.to(like.device), mesh, placements, src_data_rank=None)
    rows = value.rows(*_own_rows(like)).to(like.device)
    return DTensor.from_local(rows, mesh, placements, run_check=False, shape=like.shape, stride=like.stride())


def _own_rows(tensor: DTensor) -> tuple[int, int]:
    """Return this rank's rows, as the first one and the end."""
    (dimension,) = [d for d, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    if tensor.placements[dimension] != Shard(0):
        raise ValueError(f"a tensor in {tensor.placements[dimension]}")
    size = -(-tensor.shape[0] // tensor.device_mesh.size(dimension))
    first = min(tensor.device_mesh.get_local_rank(dimension) * size, tensor.shape[0])
    return first, first + len(tensor.to_local())


def _is_shared(value: Any) -> bool:
    return isinstance(value, DTensor) and not all(placement.is_replicate() for placement in value.placements)
