"""Process groups over peers, which are in no common world of ``torch.distributed``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore


class PeerGroup:
    """Gloo group over some peers, on the CPU. It ends when it is deleted.

    PyTorch's collectives look up a group and its ranks in tables of the world. Each peer has another world, so its own rank
    there stands for its rank here, and numbers that no world has stand for the others.

    Attributes:
        key: name of the group, equal at all its members. ``members``: numbers of the peers, in rank order.
        group: the group, for ``torch.distributed``.
    """

    def __init__(self, store: Any, key: str, members: Sequence[int], own: int, timeout_s: float) -> None:
        self.key, self.members = key, tuple(members)
        rank, size = self.members.index(own), len(self.members)
        prefixed = PrefixStore(f"group/{key}", store)
        backend = dist.ProcessGroupGloo(prefixed, rank, size, timeout=timedelta(seconds=timeout_s))
        self.group = dist.ProcessGroup(prefixed, rank, size)
        self.group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self.group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
        world_tables: Any = dist.distributed_c10d._world
        here, world = dist.get_rank(), dist.get_world_size()
        numbers = [here if other == rank else world + other for other in range(size)]
        world_tables.pg_group_ranks[self.group] = {number: other for other, number in enumerate(numbers)}
        world_tables.pg_map[self.group] = ("gloo", prefixed)

    def __del__(self) -> None:
        """Forget the group: its connections close with the last call in flight, and so the others' calls fail."""
        if hasattr(self, "group"):
            tables: Any = dist.distributed_c10d._world
            tables.pg_group_ranks.pop(self.group, None)
            tables.pg_map.pop(self.group, None)
