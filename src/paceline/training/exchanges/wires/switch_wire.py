"""Connection of a group of ranks to a switch that adds, which is one more rank of a separate gloo group.

``switch_server`` is the other end. Both meet at the store that the switch serves.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from paceline.errors import UserError
from paceline.lab.adding_switch import VARIABLE
from paceline.training.exchanges.wires.collectives import Pending, Wire, collective
from paceline.training.exchanges.wires.message_buffers import FRESH, Buffers

GROUPS = "groups"
"""Key of the number of groups so far; ``group/N`` has the workers and the timeout, in seconds, of group N."""
STORE = "TCPStore"
"""A name that PyTorch exports and its stubs do not."""
CONTROL = 0
"""Tag of rank 0's announcements: the tag and the bytes of each rank's next message, two int64."""


def meet_switch(store: Any, group: int, rank: int, workers: int, timeout: timedelta) -> tuple[Any, Any]:
    """Return the engine's groups of some workers and the switch (rank ``workers``): one for each direction.

    There are two, because gloo's sender waits until the receiver announces itself on the same connection. The switch's
    announcement would wait behind a sum there, and the link would carry one direction at a time.
    """
    ways = (dist.distributed_c10d.PrefixStore(f"group/{group}/{way}/", store) for way in ("up", "down"))
    up, down = (dist.ProcessGroupGloo(way, rank, workers + 1, timeout) for way in ways)
    return up, down


class SwitchWire(Wire):
    """Collectives over a process group, and a switch that adds the messages of its ranks."""

    def __init__(self, wire: Wire) -> None:
        """Connect to the switch; all ranks call this together. Raises UserError if no switch adds, WireError without answer."""
        super().__init__(wire.group, wire.device, wire.meter, wire.timeout_s, wire.soundness)
        address, _, port = os.environ.get(VARIABLE, "").rpartition(":")
        if not port.isdigit():
            raise UserError("no switch adds here", "paceline lab up --switch, then paceline lab exec")
        if wire.device.type != "cpu":
            raise UserError("a switch adds what gloo sends, and the gradients are on a GPU", "train on CPUs")
        self._lent = wire  # its group is released with it
        timeout = timedelta(seconds=wire.timeout_s)
        with collective():
            store = getattr(dist, STORE)(address, int(port), is_master=False, timeout=timeout)
            numbers = [0] if self.rank else [store.add(GROUPS, 1)]
            if self.rank == 0:
                store.set(f"group/{numbers[0]}", f"{self.world_size} {wire.timeout_s}")
            dist.broadcast_object_list(numbers, dist.get_global_rank(wire.group, 0), group=wire.group)
            self._up, self._down = meet_switch(store, numbers[0], self.rank, self.world_size, timeout)
        self._sent = CONTROL

    def through_switch(
        self, message: torch.Tensor, expected: int, name: str, buffers: Buffers = FRESH
    ) -> Pending[torch.Tensor]:
        """Send ``message`` (uint8, equally long on every rank) to the switch. Returns the sum's, of ``expected`` bytes."""
        self._sent += 1  # the same on every rank
        message, received = message.to(self.device), buffers.take(expected, self.device)
        if not message.numel():
            return Pending(self, name, [], lambda: received)
        self.meter.sent_bytes += message.numel()
        announced = buffers.take(16).view(torch.int64)
        announced[0], announced[1] = self._sent, message.numel()
        switch = self.world_size
        with collective():
            works = [self._down.recv([received], switch, self._sent)]
            if self.rank == 0:
                works.append(self._up.send([announced], switch, CONTROL))
            works.append(self._up.send([message], switch, self._sent))
        return Pending(self, name, works, lambda: received, (message, announced))
