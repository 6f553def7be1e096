"""Seconds of offloaded state: copies over the host's link, and the update on the host.

Gradients leave while the backward pass runs. The host updates its part, and copies new weights back while it updates others
(Ren et al. 2021, ZeRO-Offload, arXiv:2101.06840, sections 4 and 5). Before the update it widens the gradients, and scales and
clips them, each in a pass over its memory (DeepSpeed, ``stage3.py``: ``_prepare_sub_group``, ``unscale_and_clip_grads``). From
the second micro step of a step on, accumulated gradients return to the device, which adds to them, and leave again (DeepSpeed,
``stage_1_and_2.py``: ``async_accumulate_grad_in_cpu_via_gpu``).

All devices of a node share the memory and the cores of its host (``hardware/hosts``). The framework says how many threads each
process has (``Framework.host_threads``), and whether weights in the host's memory are updated by one fused loop
(``Framework.host_loops``).
"""

from __future__ import annotations

from paceline.calibration.constants import Efficiency, assumed
from paceline.errors import UserError
from paceline.hardware.catalogue import link
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device
from paceline.hardware.hosts import HostShare, host_of, missing_host
from paceline.strategy.offload import OFFLOAD_OPTIMIZER, Offload
from paceline.strategy.optimizer import OPTIMIZERS, Optimizer
from paceline.strategy.strategy import Strategy

COPY_SHARE: float = assumed("host_copy_share")
"""Share of the rate of a host's link that copies of pinned memory reach."""
CORE_RATE: float = assumed("host_core_rate")
"""Bytes/s that one core reads and writes in an update."""
MEMORY_SHARE: float = assumed("host_memory_share")
"""Share of the specified bandwidth of a host's memory that an update on all cores reaches."""

UNBOUND_SHARE: float = assumed("host_unbound_share")
"""The same while several processes share the cores without binding, as in ordinary software."""
LOOPED: float = assumed("host_loop_factor")
"""Seconds of Adam as a loop of PyTorch's operations over those of a fused one, on a processor."""

STATE_BYTES = 18.0
"""Bytes of a parameter in the host's memory under Adam."""


def check_offload(offload: Offload, device: Device) -> None:
    """Raise UserError if the catalogue lacks the figures of an offload."""
    if not offload:
        return
    if device.kind == "cpu":
        raise UserError(f"offload {offload} on {device.name}, whose memory is the host's", "leave offload out")
    if lacks := missing_host(device):
        raise UserError(
            f"offload {offload} on {device.name}: its {lacks} is not in the catalogue",
            "name a device that has it, such as A100 or H100, or leave offload out",
        )


def offloads(device: Device) -> bool:
    """Return whether the catalogue has the figures of an offload."""
    return device.kind != "cpu" and not missing_host(device)


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


def can_offload(parameters: int, cluster: Cluster) -> bool:
    """Return whether the hosts of a cluster together hold the state of so many parameters, as such nodes are usually built.

    They hold fp32 weights, gradients and the two moments of Adam, and 16-bit weights.
    """
    if not offloads(cluster.device):
        return False
    devices = max(cluster.node_sizes)
    own = host_of(cluster.device, devices)
    return own is None or STATE_BYTES * parameters <= own.node_memory(devices) * cluster.num_nodes


def copy_rate(share: HostShare, efficiency: Efficiency) -> float:
    """Return bytes/s of copies between a device and pinned memory of its host, while all devices of the node copy."""
    return min(share.link.bandwidth.value * COPY_SHARE * share.link_share, share.memory_bandwidth * efficiency.memory_share)


def update_rate(share: HostShare, efficiency: Efficiency) -> float:
    """Return bytes/s that the host reads and writes in the update of one device's part."""
    several = share.ranks > 1
    threads = 1.0 if several and efficiency.framework.host_threads == "one" else share.cores
    reached = UNBOUND_SHARE if several and efficiency.level == "ordinary" else MEMORY_SHARE
    return min(threads * CORE_RATE, share.memory_bandwidth * reached)


def update_bytes(optimizer: Optimizer, width: float, looped: bool = False) -> float:
    """Return bytes that the host reads and writes for each parameter.

    Args:
        width: bytes of a gradient, and of a weight on the device.
        looped: whether each operation of the optimizer is a separate loop.
    """
    widened = 2 * width + 4 if width < 4 else 0.0  # a gradient to fp32, a weight to the width
    scaled = 8.0
    return 4 * optimizer.moved_words * (LOOPED if looped else 1.0) + widened + scaled


def host_update_seconds(
    optimizer: Optimizer,
    parameters: int,
    width: float,
    share: HostShare,
    efficiency: Efficiency,
    offload: Offload = OFFLOAD_OPTIMIZER,
) -> float:
    """Return seconds of the update of ``parameters`` on the host, and of the copies of weights that overlap it."""
    moved = width * parameters / copy_rate(share, efficiency)
    looped = offload.weights and efficiency.framework.host_loops
    return max(update_bytes(optimizer, width, looped) * parameters / update_rate(share, efficiency), moved)


def gradient_wait_seconds(
    parameters: int, width: float, share: HostShare, efficiency: Efficiency, times: int, beside_s: float
) -> float:
    """Return seconds by which the copies of gradients are longer than the backward passes that they overlap.

    Args:
        times: transfers of gradients in a step, each during ``beside_s`` seconds of backward pass.
    """
    moved = width * parameters / copy_rate(share, efficiency)
    return max(0.0, moved - beside_s) + (times - 1) * max(0.0, 2 * moved - beside_s)
