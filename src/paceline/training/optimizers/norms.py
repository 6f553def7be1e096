"""Norms of tensors that lie in shards: every rank sums its own squares, one all-reduce adds them up."""

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
    """The ranks of the ZeroRedundancyOptimizer that is making an optimizer now, or None.

    It tells nothing of them to the optimizer that it makes, which would take its shard for the whole model.
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
    """Return whether this is a DTensor, as ``fully_shard`` makes of parameters."""
    kind = type(tensor)
    return kind is not torch.nn.Parameter and kind is not Tensor and hasattr(tensor, "placements")


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; any other tensor itself. Writes to it reach the DTensor (under ``no_grad``)."""
    return cast(Any, tensor).to_local() if is_sharded(tensor) else tensor


def like_parameter(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The part of the gradient that belongs to this rank's part of the parameter."""
    if not is_sharded(parameter):
        return gradient
    wanted, given = cast(Any, parameter), cast(Any, gradient)
    if given.placements != wanted.placements:
        given = given.redistribute(wanted.device_mesh, wanted.placements)
    return cast(Tensor, given.to_local())


def add_shards(sums: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Sums over whole tensors from sums over this rank's parts.

    One all-reduce of everything for each dimension of the mesh that parameters are sharded over, so one a step with
    ``fully_shard`` on one dimension, and with a second one of replicas (HSDP) too: what is replicated is not added.

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
    """The sum over the group's ranks of one number; NaN and infinity stay what they are. Without a group: the number."""
    if group is not None:
        total = total.clone()
        dist.all_reduce(total, group=group)
    return total


def squares(tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
    """The sum of squares of each tensor, shape (n,), added up in ``dtype``."""
    return torch.stack(torch._foreach_norm(tensors, 2, dtype)).square()
