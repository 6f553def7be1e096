"""One collective, with the bytes that each rank sends to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from paceline.array_types import Ints

Pattern = Literal["allreduce", "push", "pull", "shift", "gather", "scatter", "switch"]


def ring_bytes(size: int, members: int) -> int:
    """Return the bytes that each rank sends in a ring all-reduce of ``size`` bytes: 2 (N-1)/N of them, rounded up."""
    return -(-2 * (members - 1) * size // members)


@dataclass(frozen=True, slots=True)
class Phase:
    """One kind of collective for a group of gradients, summed over its chunks.

    The collective runs at once in equal groups of ``members`` ranks, ``stride`` apart. All ranks of the world
    are one group by default; ranks are node-major, so stride 1 is a node and a stride of its size joins equal local ranks.

    Attributes:
        name: purpose: ``allreduce``, ``factor_p``, ``factor_q``; ``scales``, ``sizes``, ``push``, ``pull``, ``reduce_scatter``,
            ``all_gather``; ``inner_reduce``, ``inner_gather``; ``gather_forward``, ``gather_backward``, ``gather_update``.
        sizes: bytes of each rank, or one number for all ranks. Their meaning depends on the pattern: ``allreduce``: size of the
            buffer, which is reduced in place; ``gather``, ``scatter``: the whole buffer; each rank has an equal part before an
            all-gather and after a reduce-scatter; ``push``: bytes that every other member sends to this rank; ``pull``: bytes
            that this rank sends to every other member; ``shift``: bytes that this rank sends to the next one; the last sends to
            the first; ``switch``: bytes that this rank sends to the switch, which adds.
        rounds: number of successive rounds; ``sizes`` are the sums over all rounds.
        plain: ``sizes`` as the hosts send them, for messages that network cards compress.
        back: for ``switch``, bytes of the sum that each rank receives; empty: as many as it sends.
    """

    name: str
    sizes: tuple[int, ...]
    world_size: int
    pattern: Pattern = "allreduce"
    members: int = 0
    stride: int = 1
    rounds: int = 1
    plain: tuple[int, ...] = ()
    back: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", self.members or self.world_size)
        if len(self.sizes) not in (1, self.world_size) or self.world_size % (self.members * self.stride):
            raise ValueError(f"{len(self.sizes)} sizes, groups of {self.members} x {self.stride}, {self.world_size} ranks")

    @property
    def ring(self) -> bool:
        """True if the collective is an all-reduce of one buffer."""
        return self.pattern == "allreduce"

    def groups(self) -> Ints:
        """Ranks as an array of shape (groups, members)."""
        ranks = np.arange(self.world_size, dtype=np.int64).reshape(-1, self.members, self.stride)
        return ranks.transpose(0, 2, 1).reshape(-1, self.members)

    def by_rank(self) -> Ints:
        """Bytes of each member: ``sizes`` with one entry for each rank."""
        return np.broadcast_to(np.asarray(self.sizes, dtype=np.int64), (self.world_size,))

    def back_by_rank(self) -> Ints:
        """Bytes that each rank gets back: ``back`` with one entry for each rank."""
        return np.broadcast_to(np.asarray(self.back or self.sizes, dtype=np.int64), (self.world_size,))

    def sent_by_rank(self) -> Ints:
        """Return the bytes that each rank sends."""
        return self._spread(sent=True)

    def received_by_rank(self) -> Ints:
        """Return the bytes that each rank receives."""
        return self._spread(sent=False)

    def sent(self, rank: int) -> int:
        """Return the bytes that ``rank`` sends."""
        return int(self.sent_by_rank()[rank])

    def received(self, rank: int) -> int:
        """Return the bytes that ``rank`` receives."""
        return int(self.received_by_rank()[rank])

    def _spread(self, sent: bool) -> Ints:
        groups = self.groups()
        sizes = self.by_rank()[groups]
        if self.pattern == "allreduce":
            moved = -(-2 * (self.members - 1) * sizes // self.members)
        elif self.pattern in ("gather", "scatter"):
            moved = -(-(self.members - 1) * sizes // self.members)
        elif self.pattern == "switch":
            moved = (sizes if sent else self.back_by_rank()[groups]) * (self.members > 1)
        elif self.pattern == "shift":
            moved = (sizes if sent else np.roll(sizes, 1, axis=1)) * (self.members > 1)
        elif (self.pattern == "push") == sent:
            moved = sizes.sum(axis=1, keepdims=True) - sizes
        else:
            moved = sizes * (self.members - 1)
        out = np.empty(self.world_size, dtype=np.int64)
        out[groups] = moved
        return out


def busiest_sent(collectives: Sequence[Phase]) -> int:
    """Return the most bytes that any rank sends in all ``collectives``: the maximum over ranks of the sum of ``Phase.sent``."""
    if not collectives:
        return 0
    return int(np.sum([phase.sent_by_rank() for phase in collectives], axis=0).max())
