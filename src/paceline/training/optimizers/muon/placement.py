"""Places of a sharded tensor: the range of every dimension that each rank of its mesh holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor

from paceline.errors import UserError
from paceline.training.optimizers.norms import is_sharded

Box = tuple[tuple[int, int], ...]
"""Start and stop in every dimension of the whole tensor."""


@dataclass(frozen=True, slots=True)
class Holders:
    """Ranks that hold tensors of one placement, as copies that are sharded among ``shards`` and repeated over ``copies``.

    Attributes:
        bins: global ranks by copy and shard.
        copy, shard: this rank's place.
        shards: this rank's group of the shards of one copy; None if it has the whole copy.
        copies: this rank's group of the ranks with the same shard; None if there is one copy.
        shard_order, copy_order: the shard, or the copy, of each member of the group, in the group's order.
        coordinates: coordinates on the mesh of each shard.
    """

    bins: tuple[tuple[int, ...], ...]
    copy: int = 0
    shard: int = 0
    shards: Any = None
    copies: Any = None
    shard_order: tuple[int, ...] = (0,)
    copy_order: tuple[int, ...] = (0,)
    coordinates: tuple[tuple[int, ...], ...] = ((),)

    @property
    def ranks(self) -> list[int]:
        """All ranks, in order of copies and shards."""
        return [rank for copy in self.bins for rank in copy]

    def place(self, rank: int) -> tuple[int, int]:
        """Return the copy and the shard of a rank."""
        at = self.ranks.index(rank)
        return divmod(at, len(self.bins[0]))


ALONE = Holders(((0,),))
"""This process alone."""


def replicated(group: Any) -> Holders:
    """Return the holders of plain tensors that every rank of a group has."""
    ranks = dist.get_process_group_ranks(group)
    if len(ranks) == 1:
        return ALONE
    return Holders(tuple((rank,) for rank in ranks), dist.get_rank(group), 0, None, group, (0,), tuple(range(len(ranks))))


def placement_key(tensor: Tensor) -> tuple[Any, ...]:
    """Return what tensors with the same holders have in common: the mesh and its dimensions that shard."""
    if not is_sharded(tensor):
        return ()
    mesh = cast(Any, tensor).device_mesh
    sharding = tuple(i for i, p in enumerate(cast(Any, tensor).placements) if not p.is_replicate() and mesh.size(i) > 1)
    return mesh, sharding


def holders_of(mesh: Any, sharding: tuple[int, ...]) -> Holders:
    """Return the holders of tensors sharded over some dimensions of a mesh and replicated over the others.

    All ranks of the mesh must call this in the same order, because groups over several dimensions may be created.
    """
    repeating = tuple(i for i in range(mesh.ndim) if i not in sharding and mesh.size(i) > 1)
    shard_group, copy_group = _group(mesh, sharding), _group(mesh, repeating)
    own = tuple(mesh.get_coordinate())
    places = {int(mesh.mesh[at]): at for at in _coordinates(tuple(mesh.shape))}

    def moved(base: tuple[int, ...], dimensions: tuple[int, ...], to: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(to[i] if i in dimensions else base[i] for i in range(len(base)))

    shards = sorted({moved(own, sharding, at) for at in places.values()})
    copies = sorted({moved(own, repeating, at) for at in places.values()})
    bins = tuple(tuple(int(mesh.mesh[moved(copy, sharding, shard)]) for shard in shards) for copy in copies)
    shard_order = tuple(shards.index(places[r]) for r in _ranks(shard_group)) or (0,)
    copy_order = tuple(copies.index(places[r]) for r in _ranks(copy_group)) or (0,)
    at = copies.index(own), shards.index(own)
    return Holders(bins, *at, shard_group, copy_group, shard_order, copy_order, tuple(shards))


def _ranks(group: Any) -> list[int]:
    return [] if group is None else dist.get_process_group_ranks(group)


def _coordinates(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for size in shape:
        found = [(*at, i) for at in found for i in range(size)]
    return found


def _group(mesh: Any, dimensions: tuple[int, ...]) -> Any:
    """Return this rank's group over some dimensions of a mesh; None over none."""
    if not dimensions:
        return None
    if len(dimensions) == 1:
        return mesh.get_group(dimensions[0])
    world = cast(Any, dist.group.WORLD)
    if mesh.size() == prod(mesh.size(i) for i in dimensions) == dist.get_world_size():
        return world
    if mesh.mesh_dim_names:
        return mesh[tuple(mesh.mesh_dim_names[i] for i in dimensions)]._flatten().get_group()
    raise UserError(
        "Muon needs a group over several dimensions of a mesh without names", "give init_device_mesh mesh_dim_names=(...)"
    )


def box(tensor: Tensor, coordinate: Sequence[int]) -> Box:
    """Return the part of a tensor that the rank at a coordinate of its mesh holds; the whole of a plain tensor.

    Raises:
        UserError: a placement that is neither a shard nor a replica.
    """
    whole = [(0, size) for size in tensor.shape]
    if not is_sharded(tensor):
        return tuple(whole)
    sharded = cast(Any, tensor)
    numbered = [(i, p) for i, p in enumerate(sharded.placements) if not p.is_replicate() and sharded.device_mesh.size(i) > 1]
    if unknown := [p for _, p in numbered if not hasattr(p, "dim")]:
        raise UserError(f"a parameter is placed as {unknown[0]}", "Muon takes Shard and Replicate")
    # FSDP2 divides the shards of tensor parallelism further and puts its dimension first: the strided shard comes last
    for i, placement in sorted(numbered, key=lambda pair: hasattr(pair[1], "split_factor")):
        start, stop = whole[placement.dim]
        each = -(-(stop - start) // sharded.device_mesh.size(i))
        first = min(stop, start + each * coordinate[i])
        whole[placement.dim] = first, min(stop, first + each)
    return tuple(whole)


def meet(one: Box, other: Box) -> Box | None:
    """Return the common part of two boxes; None if it is empty."""
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return common if all(a < b for a, b in common) else None


def elements(part: Box | None) -> int:
    """Return the number of elements of a box."""
    return 0 if part is None else prod(b - a for a, b in part)


def inside(tensor: Tensor, origin: Box, part: Box) -> Tensor:
    """Return a view of a part of a tensor whose first element is at the origin's start."""
    return tensor[tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(part, origin, strict=True))]
