"""Norms of sharded tensors: every rank sums its own squares, and one all-reduce adds them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor

NormGroup: TypeAlias = "dist.ProcessGroup | str | None"
"""Ranks that hold other tensors of the same model: a group, or "world" for all of them."""


def zero_group() -> NormGroup:
    """Return the ranks of the ZeroRedundancyOptimizer that is creating an optimizer now, or None.

    It does not pass them to that optimizer, which would mistake its shard for the whole model.
    """
    loaded = sys.modules.get("torch.distributed.optim")
    if loaded is None:
        return None
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "_init_local_optimizer" and isinstance(
            frame.f_locals.get("self"), loaded.ZeroRedundancyOptimizer
        ):
            group = frame.f_locals["self"].process_group
            return "world" if group is dist.group.WORLD else cast(dist.ProcessGroup, group)  # a name can be pickled
    return None


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor, as made by ``fully_shard``."""
    kind = type(tensor)
    return kind is not torch.nn.Parameter and kind is not Tensor and hasattr(tensor, "placements")


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, or any other tensor itself. Writes to it reach the DTensor (under ``no_grad``)."""
    return cast(Any, tensor).to_local() if is_sharded(tensor) else tensor


def like_parameter(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return the part of the gradient that belongs to this rank's part of the parameter."""
    if not is_sharded(parameter):
        return gradient
    wanted, given = cast(Any, parameter), cast(Any, gradient)
    if given.placements != wanted.placements:
        given = given.redistribute(wanted.device_mesh, wanted.placements)
    return cast(Tensor, given.to_local())


def add_shards(sums: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return sums over whole tensors from sums over this rank's parts.

    There is one all-reduce for each dimension of the mesh that shards parameters. So there is one per step with ``fully_shard``
    on one dimension, also with a second dimension of replicas (HSDP), over which nothing is added.

    Args:
        sums: shape (k, n), one column a parameter.
        parameters: the n parameters; those that are not sharded keep their column.
    """
    blocks: dict[tuple[Any, tuple[int, ...]], list[int]] = {}
    for column, parameter in enumerate(parameters):
        if is_sharded(parameter):
            mesh = cast(Any, parameter).device_mesh
            dimensions = tuple(i for i, placement in enumerate(cast(Any, parameter).placements) if not placement.is_replicate())
            blocks.setdefault((mesh, dimensions), []).append(column)
    for (mesh, dimensions), columns in blocks.items():
        whole = len(columns) == len(parameters)
        part = (sums if whole else sums[:, columns]).to(mesh.device_type).contiguous()
        for dimension in dimensions:
            dist.all_reduce(part, group=mesh.get_group(dimension))
        if whole:
            sums = part.to(sums.device)
        else:
            sums[:, columns] = part.to(sums.device)
    return sums


def add_ranks(total: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return the sum of one number over the group's ranks; without a group, the number. NaN and infinity are preserved."""
    if group is not None:
        total = total.clone()
        dist.all_reduce(total, group=group)
    return total


def squares(tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Return the sum of squares of each tensor, shape (n,), in ``dtype``."""
    return torch.stack(torch._foreach_norm(tensors, 2, dtype)).square()
