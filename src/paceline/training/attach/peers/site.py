"""Ranks of one site: the first one meets the other sites, and gives the rest what it got."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from paceline.errors import LostRank
from paceline.training.attach.peers.shared_weights import SharedWeights


class SiteRanks:
    """Ranks of one site, which hold equal weights. A site of one process needs no broadcast."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group, self._device = group, device
        self._first = dist.get_process_group_ranks(group)[0]
        self._alone = dist.get_world_size(group) == 1

    def spread(self, model: nn.Module) -> None:
        """Give every rank the weights and buffers of the first one, as DistributedDataParallel does."""
        for tensor in (*model.parameters(), *model.buffers()) if not self._alone else ():
            dist.broadcast(tensor.detach(), self._first, group=self._group)

    def together(self, call: Callable[[], bool], shared: SharedWeights) -> bool:
        """Return what ``call`` returns on the first rank. The others take the first one's shared weights.

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
        dist.broadcast(told, self._first, group=self._group)
        if error is not None:
            raise error
        if not told[0]:
            raise LostRank(f"rank {self._first} of this site could not exchange with the other sites: see its error")
        for part in (shared.fragment.anchor.detach(), shared.buffers):
            if part.numel():
                dist.broadcast(part, self._first, group=self._group)
        shared.outer_step = int(told[2])
        return bool(told[1])
