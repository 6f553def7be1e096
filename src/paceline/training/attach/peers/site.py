"""Ranks of one site: those with equal shards have one that meets the other sites, and gives the rest what it got."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from paceline.errors import LostRank, UserError
from paceline.training.attach.local.worker_ranks import Seat, local_of
from paceline.training.attach.peers.shared_weights import SharedWeights
from paceline.training.exchanges.wires.meter import Meter
from paceline.training.exchanges.wires.process_groups import own_wire


class SiteRanks:
    """Ranks of one site. Ranks with equal weights take them from the first of them; a single rank needs no broadcast.

    Args:
        group: all ranks of the site. ``seat``: place of this rank among them; without shards all have equal weights.
        timeout_s: longest time for which a rank waits for the first with an equal shard.

    Attributes:
        token: number that only the ranks of this site have.
    """

    def __init__(
        self, group: dist.ProcessGroup, device: torch.device, seat: Seat | None = None, timeout_s: float = 300
    ) -> None:
        self._group, self._device = group, device
        self._equal, ranks = group, dist.get_process_group_ranks(group)
        self._site_first = ranks[0]
        self._sharded = seat is not None and seat.place.shards > 1
        if seat is not None and self._sharded:
            ranks = list(seat.replicas)
            if seat.place.copies > 1:
                self._wire = own_wire(group, ranks, device, Meter(0), timeout_s)
                self._equal = self._wire.group
        self._first, self._alone = ranks[0], len(ranks) == 1
        token = torch.tensor([secrets.randbits(62)], dtype=torch.int64, device=device)
        if self._sharded:
            dist.broadcast(token, self._site_first, group=group)
        self.token = int(token)

    def spread(self, model: nn.Module) -> None:
        """Give ranks the weights and buffers of the first one with an equal shard, as DistributedDataParallel does."""
        for tensor in (*model.parameters(), *model.buffers()):
            values = local_of(tensor)
            if not isinstance(tensor, DTensor) and dist.get_world_size(self._group) > 1:
                dist.broadcast(values, self._site_first, group=self._group)
            elif not self._alone and values.numel():
                dist.broadcast(values, self._first, group=self._equal)

    def mean(self, buffers: torch.Tensor) -> torch.Tensor:
        """Return the mean of the buffers of ranks with different shards, which see different samples."""
        if buffers.numel():
            dist.all_reduce(buffers, group=self._group)
            buffers /= dist.get_world_size(self._group)
        return buffers

    def together(self, call: Callable[[], bool], shared: SharedWeights) -> bool:
        """Return what ``call`` returns on the first rank with an equal shard. The others take its shared weights.

        Raises:
            LostRank: on the other ranks if the call failed on the first one, which raises its own error.
        """
        if self._alone:
            return call()
        told = torch.zeros(3, dtype=torch.int64, device=self._device)
        error: Exception | None = None
        if dist.get_rank() == self._first:
            try:
                told[1] = int(call())
                told[0], told[2] = 1, shared.outer_step
            except Exception as failed:
                error = failed
        dist.broadcast(told, self._first, group=self._equal)
        if error is not None:
            raise error
        if not told[0]:
            raise LostRank(f"rank {self._first} of this site could not exchange with the other sites: see its error")
        for part in (shared.fragment.anchor.detach(), shared.buffers):
            if part.numel():
                dist.broadcast(part, self._first, group=self._equal)
        shared.outer_step = int(told[2])
        return bool(told[1])


def check_site(seat: Seat, ranks: Sequence[int]) -> None:
    """Raise UserError if the model is sharded over other ranks than those of the site."""
    if seat.place.shards > 1 and sorted(seat.members) != sorted(ranks):
        raise UserError(
            f"the model is sharded over ranks {_listed(seat.members)}, the site has ranks {_listed(ranks)}",
            "shard it over all ranks of the site, with copies (HSDP) if you like, or give their process_group",
        )


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))
