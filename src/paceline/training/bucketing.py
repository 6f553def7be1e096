"""DDP's buckets in, groups of gradients out: the same groups in every step.

DDP has one bucket in its first step and cuts anew after it, and so does a run that goes on from a checkpoint. What is
exchanged together decides where chunks, blocks of a codec and shards begin; so that a resumed run has the same bits, groups
follow from the model and DDP's settings alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.strategy import FIRST_BUCKET_BYTES, FUSE_BYTES, buckets, fuse
from paceline.training.exchange_thread import Future, Waiting
from paceline.training.tensor_layout import TensorSpec


@dataclass(frozen=True)
class Group:
    """Gradients that are exchanged together.

    Attributes:
        tensors: in gradient order; ``parts``: their gradients, flat and by name.
        finished: DDP's buckets that are complete with it.
        last: of the step.
    """

    index: int
    tensors: Sequence[TensorSpec]
    parts: Mapping[str, torch.Tensor]
    finished: Sequence[Waiting]
    last: bool


class Groups:
    """Collects buckets and hands out groups, in one fixed order.

    The last tensors of the model come first, as their gradients do; sizes are those of DDP's buckets.

    Args:
        tensors: by the ``id`` of the parameter, in model order.
        fused: join small buckets to 4 MB at least: below that an exchange costs its latency (Wang et al. 2023, Cupcake).
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
        self._waiting: list[tuple[int, Waiting]] = []  # with the last group that each bucket needs

    def of(self, bucket: Any) -> Mapping[str, torch.Tensor]:
        """The gradients of a ``GradBucket``, flat and by name."""
        tensors = [self._tensors[id(p)] for p in bucket.parameters()]
        return dict(zip((t.name for t in tensors), bucket.buffer().split([t.elements for t in tensors]), strict=True))

    def add(self, bucket: Any, future: Future) -> Iterator[Group]:
        """The groups that are complete with this bucket."""
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
