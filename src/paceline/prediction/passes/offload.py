"""Seconds of offloaded state: copies over the host's link, and the update on the host.

Gradients leave while the backward pass runs. The host updates its part at the rate of its memory, and copies new weights back
while it updates others (Ren et al. 2021, ZeRO-Offload, arXiv:2101.06840, sections 4 and 5).
"""

from __future__ import annotations

from paceline.calibration.constants import Efficiency
from paceline.errors import UserError
from paceline.hardware.catalogue import link
from paceline.hardware.device import Device
from paceline.strategy.offload import OFFLOAD_OPTIMIZER, Offload
from paceline.strategy.optimizer import OPTIMIZERS, Optimizer
from paceline.strategy.strategy import Strategy


def check_offload(offload: Offload, device: Device) -> None:
    """Raise UserError if the catalogue lacks the figures of an offload."""
    if not offload:
        return
    if device.kind == "cpu":
        raise UserError(f"offload {offload} on {device.name}, whose memory is the host's", "leave offload out")
    lacks = "link to the host" if not device.host_link else "host's memory bandwidth" if device.host_bandwidth is None else ""
    if lacks:
        raise UserError(
            f"offload {offload} on {device.name}: its {lacks} is not in the catalogue",
            "name a device that has it, such as A100 or H100, or leave offload out",
        )


def offloads(device: Device) -> bool:
    """Return whether the catalogue has the figures of an offload."""
    return device.kind != "cpu" and bool(device.host_link) and device.host_bandwidth is not None


def check_paged(strategy: Strategy, device: Device) -> None:
    """Raise UserError if a paged optimizer has no link to page over."""
    if OPTIMIZERS[strategy.optimizer].paged and not (device.kind == "gpu" and device.host_link):
        raise UserError(
            f"{strategy.optimizer} on {device.name}: its link to the host is not in the catalogue",
            "name a GPU that has it, such as A100 or RTX 4090, or give another optimizer",
        )


def paging_seconds(size: float, device: Device, efficiency: Efficiency) -> float:
    """Return seconds in which a step moves ``size`` bytes of paged state to the device for the update, and back before the
    activations of the next pass need the room. bitsandbytes asks for pages ahead, so that they move at the link's rate
    (``functional.py``, ``prefetch_tensor``)."""
    return 2 * size / efficiency.bandwidth(link(device.host_link)) if size else 0.0


def copy_seconds(size: float, device: Device, efficiency: Efficiency) -> float:
    """Return seconds of a copy of ``size`` bytes between a device and its host. Raises UserError if the link is unknown."""
    check_offload(OFFLOAD_OPTIMIZER, device)
    return size / efficiency.bandwidth(link(device.host_link))


def host_update_seconds(
    optimizer: Optimizer, parameters: int, width: float, device: Device, efficiency: Efficiency, times: int, beside_s: float
) -> float:
    """Return seconds that a step waits for the host.

    Args:
        parameters: parameters of the worker's part.
        width: bytes of a gradient, and of a weight on the device.
        times: transfers of gradients in a step, each during ``beside_s`` seconds of backward pass.

    Raises:
        UserError: as ``check_offload``.
    """
    check_offload(OFFLOAD_OPTIMIZER, device)
    assert device.host_bandwidth is not None
    moved = copy_seconds(width * parameters, device, efficiency)
    update = 4 * optimizer.moved_words * parameters / (device.host_bandwidth.value * efficiency.memory_share)
    return times * max(0.0, moved - beside_s) + max(update, moved)
