"""Residuals of a sharded model's exchange, saved with ``torch.distributed.checkpoint`` and loaded on any number of ranks.

A residual belongs to the rank that made it. It is saved as a tensor of four dimensions, (sources, places, rows, shard): source
s with place l in its node holds the residuals for the owners of its rows, and row r of place l is owner ``r * places + l``.
Over all ranks there are as many sources as ranks and one place; over nodes or in HSDP the sources are nodes or replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from paceline.errors import UserError
from paceline.training.attach.shards.unit_exchange import ShardedTensor, sharded
from paceline.training.exchanges.wires.collectives import Wire

KINDS = ("residual", "velocity")
_PART = {"values": torch.Tensor, "source": int, "place": int, "sources": int, "places": int}


@dataclass(frozen=True)
class Holding:
    """Part of every compressed tensor's residual on this rank.

    Attributes:
        mesh: the ranks by (source, place), or by source alone if there is one place.
        sources: ranks that hold a residual of the same element.
        places: ranks that hold those of different elements.
        place: place of this rank.
        rows: owners to which each rank sends.
        reading: a wire whose ranks read a checkpoint together.
    """

    mesh: DeviceMesh
    sources: int
    places: int
    place: int
    rows: int
    reading: Wire

    @property
    def owners(self) -> int:
        """Number of ranks that shard a tensor."""
        return self.rows * self.places

    def saved(self, values: torch.Tensor) -> DTensor:
        """Return this rank's residual, (rows, shard), as a part of the tensor over all ranks."""
        local = values.detach().to(self.mesh.device_type, copy=True, memory_format=torch.contiguous_format)
        local = local.view(1, 1, self.rows, -1)
        shape = torch.Size((self.sources, self.places, self.rows, local.shape[-1]))
        placements = [Shard(dimension) for dimension in range(self.mesh.ndim)]
        stride = torch.empty(shape, dtype=torch.float32, device="meta").stride()
        return DTensor.from_local(local, self.mesh, placements, run_check=False, shape=shape, stride=stride)

    def part(self, values: torch.Tensor, copied: bool = True) -> dict[str, Any]:
        """Return this rank's residual, (rows, shard), or a copy, as plain values with the rank's position."""
        kept = values.detach().to("cpu", copy=True).contiguous() if copied else values.detach()
        return {"values": kept, "source": self.source, "place": self.place, "sources": self.sources, "places": self.places}

    def from_parts(self, parts: Sequence[Mapping[str, Any]], tensor: ShardedTensor) -> torch.Tensor:
        """Return this rank's residual of a tensor from ``part`` of ranks of this or another mesh, so that the total is equal.

        Raises:
            UserError: a mesh of other ranks, and not the parts of all of them; parts of several runs or of another model.
        """
        first = parts[0]
        shape = (self.rows, tensor.shard)
        if (first["sources"], first["places"], tuple(first["values"].shape)) == (self.sources, self.places, shape):
            own = [p for p in parts if (p["source"], p["place"]) == (self.source, self.place)]
            if own:
                values: torch.Tensor = own[0]["values"]
                return values
        if len({(p["sources"], p["places"], tuple(p["values"].shape)) for p in parts}) > 1:
            raise UserError(f"the states of {tensor.name} are of several runs", "give those of one checkpoint")
        held = {(p["source"], p["place"]) for p in parts}
        if len(held) != first["sources"] * first["places"]:
            raise UserError(
                f"the state of {tensor.name} is of {first['sources'] * first['places']} ranks, and {len(held)} are here",
                "give those of all ranks",
            )
        owners = first["values"].shape[0] * first["places"]
        check_shards(tensor, owners, first["values"].shape[1])
        total = torch.zeros(owners, first["values"].shape[1], dtype=torch.float32)
        for part in parts:
            total[part["place"] :: part["places"]] += part["values"]
        share = self.share(first["sources"], first["places"])
        return self.own_rows(tensor.rows_of(tensor.whole_of(total), self.owners) * share)

    def share(self, sources: int, places: int) -> float:
        """Return the share of each source in the sum over the sources of another mesh.

        Gradients are divided by the number of ranks, so the effective residual is the sum over the sources divided by it. This
        quotient is preserved: half the ranks hold half the sum.
        """
        return self.places / (sources * places)

    @property
    def source(self) -> int:
        """Index of this rank's source."""
        coordinate = self.mesh.get_coordinate()
        return coordinate[0] if coordinate else 0

    def own_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of (owners, shard) that this rank sends to."""
        return rows[self.place :: self.places]


def mesh_of(source_group: dist.ProcessGroup, place_group: dist.ProcessGroup | None, device: str) -> DeviceMesh:
    """Return the ranks by source, and by place if there are several.

    Args:
        source_group: the ranks with this rank's place; ``place_group``: the ranks of its node.
    """
    if place_group is None:
        return DeviceMesh.from_group(source_group, device)
    ranks: list[Any] = [None] * place_group.size()
    dist.all_gather_object(ranks, dist.get_process_group_ranks(source_group), group=place_group)
    mesh = torch.tensor(ranks, dtype=torch.int64).T.contiguous()
    return DeviceMesh.from_group([source_group, place_group], device, mesh=mesh, mesh_dim_names=("source", "place"))


def is_part(found: object) -> bool:
    """Return whether a value is a result of ``Holding.part``."""
    if not isinstance(found, Mapping) or not all(isinstance(found.get(name), kind) for name, kind in _PART.items()):
        return False
    return bool(found["values"].ndim == 2)


def check_shards(tensor: ShardedTensor, owners: int, shard: int) -> None:
    """Raise UserError if ``owners`` saved shards of a tensor have other sizes than those of this model."""
    (own,) = sharded([tensor.whole], [tensor.dimension], owners)
    if own.shard != shard:
        raise UserError(
            f"the state has {tensor.name} in {owners} shards of {shard} elements, the model's have {own.shard}",
            "load it into the model that saved it",
        )


def check_saved(tensor: ShardedTensor, size: torch.Size) -> None:
    """Raise UserError if a checkpoint's entry for a tensor, (sources, places, rows, shard), belongs to another model."""
    if len(size) != 4:
        raise UserError(f"the state of {tensor.name} has the shape {tuple(size)}", "give the name of a sharded hook's state")
    check_shards(tensor, size[1] * size[2], size[3])


def read(values: dict[str, Any], path: str | Path, group: dist.ProcessGroup | None = None) -> None:
    """Fill ``values`` from a checkpoint. Every rank of the group calls it. Raises UserError, on every one, if it lacks them."""
    try:
        load(values, checkpoint_id=path, process_group=group)
    except CheckpointException as error:  # no Exception; it holds what went wrong on which rank, with tracebacks
        why = str(next((failure for failure, _ in error.failures.values()), "no reason given")).rstrip(".")
        raise UserError(
            f"{path} holds no {', '.join(map(repr, values))} of a sharded model's exchange that can be read: {why}",
            "give the checkpoint, and the name in it, under which the hook was saved",
        ) from error


def of_other_ranks(
    path: str | Path, key: str, tensor: ShardedTensor, holding: Holding, size: torch.Size, device: torch.device
) -> torch.Tensor:
    """Return this rank's part of a residual that other ranks have saved, so that the total is preserved.

    The ranks of ``holding.reading`` read the sources in equal shares and sum them.

    Args:
        key: key of the tensor in the checkpoint; ``size``: its (sources, places, rows, shard) there.

    Returns:
        (rows, shard) of this rank.
    """
    wire = holding.reading
    mesh = DeviceMesh.from_group(wire.group, device.type)
    empty = torch.distributed.tensor.zeros(size, device_mesh=mesh, placements=[Shard(0)])
    read({key: empty}, path, wire.group)
    total = empty.to_local().sum(0).to(wire.device)
    wire.all_reduce(total, name="residuals").wait()
    owners = size[1] * size[2]
    rows = total.transpose(0, 1).reshape(owners, size[3]).to(device)  # (places, rows) in the order of the owners
    share = holding.share(size[0], size[1])
    return holding.own_rows(tensor.rows_of(tensor.whole_of(rows), holding.owners) * share)


def saved_sizes(path: str | Path, key: str) -> dict[str, torch.Size]:
    """Return the sizes of a checkpoint's tensors below ``key``, by whole key. Raises UserError where there is no checkpoint."""
    try:
        metadata: Mapping[str, Any] = FileSystemReader(path).read_metadata().state_dict_metadata
    except Exception as error:  # unpickling raises whatever the damage leads to
        why = str(error) or type(error).__name__
        raise UserError(f"{path} holds no checkpoint of torch.distributed.checkpoint: {why}") from error
    return {name: entry.size for name, entry in metadata.items() if name.startswith(f"{key}.") and hasattr(entry, "size")}
