"""Collectives of a worker's ranks around an exchange between workers: verdicts, buffers, and the means of equal shards."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

import torch
import torch.distributed as dist

from paceline.training.attach.consistency import comparable, same_in_mesh
from paceline.training.attach.local.worker_ranks import Seat, ShardPart, WorkerPlace
from paceline.training.exchanges.wires.collectives import Wire
from paceline.training.exchanges.wires.process_groups import own_wire


class WorkerRanks:
    """Ranks of this rank's worker.

    Args:
        between: wire of the ranks with this rank's part in all workers.
        group: all ranks of all workers, which create this at the same time.

    Attributes:
        place: place of this rank. ``members``: wire of the worker; ``replicas``: of its ranks with equal shards, if several.
    """

    def __init__(self, seat: Seat, between: Wire, group: dist.ProcessGroup) -> None:
        self.place: WorkerPlace = seat.place
        given = between.device, between.meter, between.timeout_s, between.soundness
        self.members = own_wire(group, seat.members, *given)
        self.replicas = own_wire(group, seat.replicas, *given) if self.place.copies > 1 else None
        self._between = between

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the sum of statistics over the worker's ranks, in place. These bytes are no part of a step."""
        return self.members.note(numbers)()

    def any(self, holds: bool) -> bool:
        """Return whether a condition holds on any rank of the worker."""
        return bool(self.total(torch.tensor([float(holds)], dtype=torch.float32, device=self.members.device)).item())

    def same_weights(self, anchors: Sequence[torch.Tensor]) -> None:
        """Compare a checksum of the shared weights. Raises ReplicasDiverged on every rank of all workers."""
        same = [self._between.group] + ([self.replicas.group] if self.replicas else [])
        same_in_mesh("weights", comparable(anchors), same, [self.members.group], self._between.device)

    def gather(self, own: torch.Tensor, parts: Sequence[ShardPart], into: torch.Tensor) -> None:
        """Write the parts of all ranks with equal shards into ``into``, the flat shards of a fragment.

        Args:
            own: the elements that this rank exchanges, tensor after tensor.
        """
        assert self.replicas is not None, "shards without copies are exchanged whole"
        copies = self.place.copies
        each = [ceil(prod(part.shape) / copies) for part in parts]
        padded = own.new_zeros(sum(each))
        for room, values in zip(padded.split(each), own.split([p.stop - p.start for p in parts]), strict=True):
            room[: values.numel()] = values
        gathered = own.new_empty(copies * padded.numel())
        self.replicas.all_gather(gathered, padded, "worker_gather").wait()
        columns = gathered.view(copies, -1).split(each, dim=1)
        for shard, column in zip(into.split([prod(part.shape) for part in parts]), columns, strict=True):
            shard.copy_(column.reshape(-1)[: shard.numel()])


def exchanged(mean: torch.Tensor, parts: Sequence[ShardPart], place: WorkerPlace) -> torch.Tensor:
    """Return the elements of a fragment's flat shards that this rank exchanges: ``mean`` itself, or a copy of its slices."""
    if place.copies == 1:
        return mean
    shards = mean.split([prod(part.shape) for part in parts])
    return torch.cat([shard[part.start : part.stop] for shard, part in zip(shards, parts, strict=True)])
