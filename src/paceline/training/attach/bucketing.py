"""Conversion of DDP's buckets to groups of gradients that are equal in every step.

DDP has one bucket in its first step and rebuilds its buckets afterwards; a resumed run does so too. The bounds of an exchange
determine where chunks, codec blocks and shards begin. Groups therefore depend only on the model and on DDP's settings, so
that a resumed run has the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.strategy import FIRST_BUCKET_BYTES, FUSE_BYTES, buckets, fuse
from paceline.training.attach.exchange_thread import Future, Waiting
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec


@dataclass(frozen=True)
class Group:
    """Gradients that are exchanged together.

    Attributes:
        tensors: the tensors in gradient order.
        parts: their flat gradients by name.
        finished: DDP's buckets that this group completes.
        last: whether it is the last group of the step.
    """

    index: int
    tensors: Sequence[TensorSpec]
    parts: Mapping[str, torch.Tensor]
    finished: Sequence[Waiting]
    last: bool


class Groups:
    """Collector of buckets that returns groups in a fixed order.

    The last tensors of the model come first, since their gradients do. Groups have the sizes of DDP's buckets.

    Args:
        tensors: specs by the ``id`` of the parameter, in model order.
        fused: join small buckets to at least 4 MB; below that, latency dominates an exchange (Wang et al. 2023, Cupcake).
    """

    def __init__(self, model: DistributedDataParallel, tensors: Mapping[int, TensorSpec], fused: bool) -> None:
        first = FIRST_BUCKET_BYTES if model.bucket_bytes_cap_default else model.bucket_bytes_cap
        cut = buckets(list(tensors.values())[::-1], model.bucket_bytes_cap, first)
        self.members: list[list[TensorSpec]] = fuse(cut, FUSE_BYTES) if fused else cut
        self._tensors = tensors
        self._place = {t.name: index for index, members in enumerate(self.members) for t in members}
        self._begin()

    def _begin(self) -> None:
        self._next = 0
        self._parts: dict[str, torch.Tensor] = {}
        self._waiting: list[tuple[int, Waiting]] = []  # each with the last group that the bucket needs

    def of(self, bucket: Any) -> Mapping[str, torch.Tensor]:
        """Return the flat gradients of a ``GradBucket`` by name."""
        tensors = [self._tensors[id(p)] for p in bucket.parameters()]
        return dict(zip((t.name for t in tensors), bucket.buffer().split([t.elements for t in tensors]), strict=True))

    def add(self, bucket: Any, future: Future) -> Iterator[Group]:
        """Add a bucket, and return the groups that it completes."""
        parts = self.of(bucket)
        self._parts |= parts
        self._waiting.append((max(self._place[name] for name in parts), (bucket.buffer(), future)))
        while self._next < len(self.members) and all(t.name in self._parts for t in self.members[self._next]):
            index, members = self._next, self.members[self._next]
            self._next += 1
            yield Group(
                index,
                members,
                {t.name: self._parts[t.name] for t in members},
                [waiting for needed, waiting in self._waiting if needed == index],
                self._next == len(self.members),
            )
        if self._next == len(self.members):
            self._begin()
