"""What a job runs on: devices in nodes, a link inside a node and a network between them."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import UserError
from paceline.hardware.device import Device, Link


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """``num_nodes`` equal nodes of ``devices_per_node`` devices.

    Attributes:
        intra_link: between devices of one node; its bandwidth is per device, one direction.
        network: between nodes; its bandwidth is per node, one direction, shared by the node's devices.
    """

    device: Device
    devices_per_node: int
    num_nodes: int
    intra_link: Link
    network: Link

    def __post_init__(self) -> None:
        for name in ("devices_per_node", "num_nodes"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}", "give a whole number from 1 up")

    @property
    def world_size(self) -> int:
        """Number of data-parallel ranks when every device works."""
        return self.devices_per_node * self.num_nodes
