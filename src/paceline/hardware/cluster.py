"""What a job runs on: devices in nodes, a link inside a node and a network between them."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import UserError
from paceline.hardware.device import Device, Link

MOST_DEVICES = 1 << 20
"""Devices of a cluster that are predicted: a bound on time and memory, above any cluster that stands."""
MOST_IN_NODE = {"pcie": 16, "fabric": 64, "nvlink": 576, "ici": 9216}
"""Devices that one link inside a node joins at most: 16 GPUs of a PCIe host (AWS p2.16xlarge), 576 GPUs in a domain of NVLink
switches (NVIDIA, GB200 NVL72), 9,216 chips of a TPU pod (Google, Ironwood, 2025); fabrics are taken to join eight boards of
eight. Memory and loopback join what the machine has."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """``num_nodes`` equal nodes of ``devices_per_node`` devices.

    Attributes:
        intra_link: between devices of one node; its bandwidth is per device, one direction.
        network: between nodes; its bandwidth is per node, one direction, shared by the node's devices.

    Raises:
        UserError: a count below 1, or above what the link inside a node joins (``MOST_IN_NODE``) or ``MOST_DEVICES``.
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
        most = MOST_IN_NODE.get(self.intra_link.kind, MOST_DEVICES)
        if self.devices_per_node > most:
            raise UserError(
                f"{self.devices_per_node:,} devices in a node: {self.intra_link.name} joins at most {most:,}",
                "give fewer devices a node and more nodes",
            )
        if self.world_size > MOST_DEVICES:
            raise UserError(f"{self.world_size:,} devices are more than can be predicted", f"give at most {MOST_DEVICES:,}")

    @property
    def world_size(self) -> int:
        """Number of data-parallel ranks when every device works."""
        return self.devices_per_node * self.num_nodes
