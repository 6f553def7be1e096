"""Worker of local steps that is a group of devices: its ranks, and the part of the network that each rank exchanges.

Within a worker FSDP2, HSDP or DistributedDataParallel add gradients in every step. Each rank exchanges its shard with the ranks
that have the same shard in the other workers. Ranks with equal shards (HSDP, DistributedDataParallel) divide the shard, and
gather the means, so that each number leaves a worker once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UserError
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec


@dataclass(frozen=True)
class WorkerPlace:
    """Place of a rank in its worker: shard number ``shard`` of ``shards``, in copy number ``copy`` of ``copies``."""

    shard: int = 0
    shards: int = 1
    copy: int = 0
    copies: int = 1

    @property
    def devices(self) -> int:
        """Number of devices of the worker."""
        return self.shards * self.copies


@dataclass(frozen=True)
class Seat:
    """Place of this rank, with the ranks of its worker (``members``), and those of them with an equal shard (``replicas``)."""

    place: WorkerPlace
    members: tuple[int, ...]
    replicas: tuple[int, ...]


@dataclass(frozen=True)
class ShardPart:
    """Part of a tensor on one rank.

    Attributes:
        spec: the whole tensor.
        shape, corner: shape of this rank's shard, and its first index in the whole tensor.
        start, stop: elements of the flat shard that this rank exchanges.
    """

    spec: TensorSpec
    shape: tuple[int, ...]
    corner: tuple[int, ...]
    start: int
    stop: int

    @property
    def name(self) -> str:
        """Name of the tensor."""
        return self.spec.name

    @property
    def shard(self) -> TensorSpec:
        """This rank's shard, with the index of its first element among all trained elements."""
        strides = [prod(self.spec.shape[d + 1 :]) for d in range(len(self.spec.shape))]
        first = sum(a * b for a, b in zip(self.corner, strides, strict=True)) if prod(self.shape) else 0
        return TensorSpec(self.name, self.shape, self.spec.offset + first)

    @property
    def exchanged(self) -> TensorSpec:
        """Elements of the shard that this rank exchanges."""
        return TensorSpec(self.name, (self.stop - self.start,), self.shard.offset + self.start)


def seat_of(model: nn.Module, named: Sequence[tuple[str, nn.Parameter]]) -> Seat:
    """Return this rank's seat in its worker, from the meshes of its parameters.

    Args:
        named: trained parameters.

    Raises:
        UserError: parameters of which only some are sharded, or on different meshes; a network divided in another way.
    """
    rank = dist.get_rank()
    if isinstance(model, DistributedDataParallel):
        ranks = tuple(dist.get_process_group_ranks(model.process_group))
        return Seat(WorkerPlace(copy=ranks.index(rank), copies=len(ranks)), ranks, ranks)
    divided: list[tuple[str, Any]] = [(name, p) for name, p in named if isinstance(p, DTensor)]
    if not divided:
        return Seat(WorkerPlace(), (rank,), (rank,))
    name, first = divided[0]
    whole = next((n for n, p in named if not isinstance(p, DTensor)), None)
    if whole is not None:
        raise UserError(
            f"{whole} is whole on each rank and {name} is sharded: a worker's ranks do not add its gradients",
            "call fully_shard on the whole model, without ignored_params",
        )
    copied = [isinstance(placement, Replicate) for placement in first.placements]
    for other, p in divided:
        if p.device_mesh != first.device_mesh or [isinstance(x, Replicate) for x in p.placements] != copied:
            raise UserError(f"{other} and {name} lie on different meshes", "shard the whole model over one mesh of each worker")
        if not all(type(x) in (Replicate, Shard) for x in p.placements) or sum(not c for c in copied) > 1:
            raise UserError(
                f"{other} is divided as {tuple(p.placements)}: local steps take FSDP2 and HSDP",
                "leave tensor parallelism out, or exchange in every step",
            )
    mesh, at = first.device_mesh.mesh, first.device_mesh.get_coordinate()
    dims = range(mesh.ndim)
    order = [d for d in dims if copied[d]] + [d for d in dims if not copied[d]]
    copies = prod(mesh.shape[d] for d in dims if copied[d])
    table = mesh.permute(order).reshape(copies, -1)
    copy, shard = ((table == rank).nonzero()[0]).tolist()
    assert at is not None, "a parameter has a shard on this rank"
    place = WorkerPlace(shard, table.shape[1], copy, copies)
    return Seat(place, tuple(table.reshape(-1).tolist()), tuple(table[:, shard].tolist()))


def parts_of(named: Mapping[str, nn.Parameter], specs: Sequence[TensorSpec], place: WorkerPlace) -> list[ShardPart]:
    """Return this rank's part of each tensor, in the order of ``specs``."""
    parts = []
    for spec in specs:
        p: Any = named[spec.name]
        shape, corner = spec.shape, (0,) * len(spec.shape)
        if isinstance(p, DTensor):
            shape, corner = tuple(p.to_local().shape), _corner(p)
        each = ceil(prod(shape) / place.copies)
        start = min(place.copy * each, prod(shape))
        parts.append(ShardPart(spec, shape, corner, start, min(start + each, prod(shape))))
    return parts


def _corner(p: Any) -> tuple[int, ...]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, corner = compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)
    return tuple(corner)


def local_of(p: Any) -> torch.Tensor:
    """Return the memory of a parameter on this rank, without autograd."""
    tensor: torch.Tensor = p.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def peers_of(seat: Seat, group: dist.ProcessGroup) -> list[int]:
    """Return the ranks with this rank's part in all workers, in the workers' order. All ranks of ``group`` must call it.

    Raises:
        UserError: on every rank, if the ranks of the group are not two or more whole and equal workers.
    """
    ranks = dist.get_process_group_ranks(group)
    seats: list[Any] = [None] * len(ranks)
    dist.all_gather_object(seats, seat, group=group)
    workers = sorted({found.members for found in seats}, key=min)
    devices = sorted(rank for members in workers for rank in members)
    if devices != sorted(ranks) or len({len(members) for members in workers}) > 1:
        told = "; ".join(", ".join(map(str, members)) for members in workers[:4])
        raise UserError(
            f"the workers are ranks {told}: they are not all ranks of the process group, in groups of equal size",
            "shard each worker's model over its own row of init_device_mesh(device, (workers, devices))",
        )
    if len({(found.place.shards, found.place.copies) for found in seats}) > 1:
        raise UserError("the workers are sharded in different ways", "give all workers meshes of one shape")
    if len(workers) == 1 and len(devices) > 1:
        raise UserError(
            f"the model is sharded over all {len(devices)} ranks: they are one worker, which has none to exchange with",
            "shard each worker's model over its own row of init_device_mesh(device, (workers, devices))",
        )
    by_place = {(found.members, found.place): rank for found, rank in zip(seats, ranks, strict=True)}
    return [by_place[members, seat.place] for members in workers]


def reshard(model: nn.Module) -> None:
    """Free weights that FSDP2 has gathered, so that parameters are shards. FSDP2 keeps the root's after a lone forward pass."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
