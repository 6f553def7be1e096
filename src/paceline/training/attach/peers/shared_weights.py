"""Weights that peers share: anchor, outer momentum and buffers after an outer step, as every peer holds them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Sequence

import torch

from paceline.strategy import LocalSteps
from paceline.training.attach.local.local_fragments import Fragment


class SharedWeights:
    """Shared weights of one peer, which it gives to newcomers and late peers.

    The outer step is that of DiLoCo if all changes are of the present weights. If older ones count too (``max_age``), the
    momentum is delayed: it moves once the changes of as many peers as there are have come, and each change counts as their mean
    would (Liu et al. 2024, arXiv:2401.09135, Delayed Nesterov with c = 0). Both rules are equal if every peer comes.

    Attributes:
        outer_step: number of outer steps so far; -1 before the peer has joined.
        fragment: the network's weights, anchor and outer momentum.
        delayed: sum of the changes since the momentum moved; None if the momentum is not delayed. ``counted``: their number.
        buffers: shared buffers, flat.
    """

    def __init__(self, fragment: Fragment, buffers: torch.Tensor, local: LocalSteps) -> None:
        self.fragment, self.buffers, self._local = fragment, buffers, local
        self.outer_step = 0
        self.delayed = torch.zeros_like(fragment.anchor) if local.max_age and fragment.momentum is not None else None
        self.counted = 0
        self._changing = threading.Lock()

    @torch.no_grad()
    def move(self, mean: torch.Tensor, buffers: torch.Tensor, contributors: int, peers: int) -> None:
        """Take an outer step with the mean of the peers' changes.

        Args:
            mean: mean over the contributors. ``buffers``: their mean buffers.
            peers: how many peers there are, if older changes count.
        """
        with self._changing:
            self.outer_step += 1
            if not contributors:
                return
            self.buffers = buffers
            if not self._local.max_age:
                self.fragment.move(mean)
                return
            share = mean.mul(contributors / max(peers, contributors))  # the sum over the contributors, divided by all peers
            anchor, momentum = self.fragment.anchor, self.fragment.momentum
            if self.delayed is not None and momentum is not None:
                self.counted += contributors
                self.delayed.add_(mean, alpha=contributors)
                if self.counted >= peers:
                    momentum.mul_(self._local.outer_momentum).add_(self.delayed, alpha=1 / self.counted)
                    share.add_(momentum, alpha=self._local.outer_momentum)
                    self.delayed.zero_()
                    self.counted = 0
            anchor.sub_(share, alpha=self._local.outer_lr)

    def give_up(self) -> None:
        """Count an outer step that leaves the shared weights as they are."""
        with self._changing:
            self.outer_step += 1

    def parts(self) -> list[torch.Tensor]:
        """Return the tensors that a newcomer needs."""
        return [t for t in (self.fragment.anchor.detach(), self.fragment.momentum, self.delayed, self.buffers) if t is not None]

    def header(self) -> torch.Tensor:
        """Return the numbers that a newcomer needs."""
        return torch.tensor([self.outer_step, self.counted], dtype=torch.int64)

    def snapshot(self) -> list[torch.Tensor]:
        """Return copies of header and parts on the CPU, of one moment. A next outer step waits for the copy only."""
        with self._changing:
            return [self.header(), *(part.cpu().clone() for part in self.parts())]

    def room(self) -> list[torch.Tensor]:
        """Return empty tensors for another peer's snapshot."""
        return [self.header(), *(torch.empty_like(part, device="cpu") for part in self.parts())]

    @torch.no_grad()
    def adopt(self, snapshot: Sequence[torch.Tensor]) -> None:
        """Take another peer's snapshot."""
        with self._changing:
            header, *parts = snapshot
            self.outer_step, self.counted = int(header[0]), int(header[1])
            for own, part in zip(self.parts(), parts, strict=True):
                own.copy_(part)

    def relabel(self, outer_step: int) -> None:
        """Count the present weights as those of a later outer step, which is lost with all peers that had it."""
        with self._changing:
            self.outer_step = outer_step

    def digest(self) -> str:
        """Return a checksum of all parts."""
        return checksum_of(self.parts())


def checksum_of(tensors: Iterable[torch.Tensor]) -> str:
    """Return a checksum of the bits of tensors."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return total.hexdigest()[:16]
