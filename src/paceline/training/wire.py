"""The process group as exchanges use it: two collectives, counted and timed. Transport is ``torch.distributed``'s alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from paceline.strategy import Phase
from paceline.training.meter import Meter

Bytes = NDArray[np.uint8]


class Wire:
    """Collectives over one process group; every byte that leaves this rank is added to the meter."""

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device, meter: Meter) -> None:
        self.group, self.device, self.meter = group, device, meter
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)

    def all_reduce(
        self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM, name: str = "allreduce"
    ) -> None:
        """Reduce in place. Counted as a ring, the engine's algorithm: 2 (N-1)/N of the buffer."""
        self.meter.sent_bytes += Phase("allreduce", (tensor.nbytes,), self.world_size).sent(self.rank)
        with self.meter.span(name, "network"):
            dist.all_reduce(tensor, op=op, group=self.group)

    def all_to_all(self, outgoing: Sequence[Bytes], incoming_bytes: Sequence[int], name: str) -> list[Bytes]:
        """Send ``outgoing[j]`` to rank j and return what each rank sent here. The own entry must be empty."""
        data = torch.from_numpy(np.concatenate(outgoing)).to(self.device)
        received = torch.empty(sum(incoming_bytes), dtype=torch.uint8, device=self.device)
        sizes = [message.size for message in outgoing]
        self.meter.sent_bytes += data.numel()
        with self.meter.span(name, "network"):
            dist.all_to_all_single(received, data, list(incoming_bytes), sizes, group=self.group)
        return np.split(received.cpu().numpy(), np.cumsum(incoming_bytes)[:-1])
