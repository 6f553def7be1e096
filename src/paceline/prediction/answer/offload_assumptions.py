"""Assumptions about the host of a node, in plain sentences: what is in its memory, and how fast it works."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.calibration.constants import Efficiency
from paceline.hardware.cluster import Cluster
from paceline.hardware.hosts import HostShare, host_of, host_share
from paceline.hardware.precision import BYTES_PER_ELEMENT
from paceline.prediction.answer.result import Assumption
from paceline.prediction.passes.activation_offload import blocks_on_host
from paceline.prediction.passes.offload import copy_rate, update_rate
from paceline.prediction.step.memory import numbers_of
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.strategy import Strategy
from paceline.units import format_byte_rate, format_gib
from paceline.workload.table import Workload


def offload_assumptions(
    workload: Workload, cluster: Cluster, strategy: Strategy, efficiency: Efficiency
) -> Iterator[Assumption]:
    """Yield what an offload assumes; nothing without one."""
    mesh = strategy.parallelism
    if not mesh.offload:
        return
    devices = max(cluster.node_sizes)
    share = host_share(cluster.device, devices)
    needed = devices * host_bytes(workload, strategy)
    own = host_of(cluster.device, devices)
    has = own.node_memory(devices) if own else needed
    usual = f" Such a host usually has {format_gib(has)}." if needed > has else ""
    yield Assumption(
        "parallelism",
        f"{mesh.offload.name.capitalize()} in the host's memory, {format_gib(needed)} a node, which are taken to be there."
        f"{usual}",
        "Ren et al. 2021, ZeRO-Offload, arXiv:2101.06840",
    )
    yield Assumption("parallelism", _host_text(cluster, share, efficiency), _source(cluster))
    if mesh.offload.optimizer:
        looped = mesh.offload.weights and efficiency.framework.host_loops
        how = "a loop of PyTorch's operations" if looped else "DeepSpeed's CPU-Adam or another fused loop"
        yield Assumption(
            "parallelism",
            f"The host updates with {how}, {format_byte_rate(update_rate(share, efficiency))} for each device. Gradients leave "
            "during the backward pass.",
        )


def host_bytes(workload: Workload, strategy: Strategy) -> float:
    """Return bytes of one device in the host's memory: fp32 weights, gradients and optimizer state, and 16-bit weights, each of
    its part; and activations of a micro batch."""
    mesh = strategy.parallelism
    parts = (mesh.sharers if mesh.sharding.optimizer else 1) * mesh.model_devices
    state = 0.0
    if mesh.offload.optimizer:
        width = BYTES_PER_ELEMENT[strategy.precision]
        state = (8.0 + 4 * OPTIMIZERS[strategy.optimizer].state_words + width) * workload.num_parameters / parts
    if mesh.host_activations is None:
        return state
    blocks = blocks_on_host(workload, mesh.recomputation, mesh.host_activations, numbers_of(strategy), strategy.precision)
    return state + blocks.kept_bytes * strategy.micro_batch_size / mesh.model_devices


def _host_text(cluster: Cluster, share: HostShare, efficiency: Efficiency) -> str:
    copies = format_byte_rate(copy_rate(share, efficiency))
    own = f"Host: {share.host}, " if share.host else "Host: "
    memory = f"{format_byte_rate(share.memory_bandwidth)} of memory bandwidth and {share.cores:g} cores for each device"
    return f"{own}{memory}. Copies over {share.link.name} reach {copies}."


def _source(cluster: Cluster) -> str:
    own = host_of(cluster.device, max(cluster.node_sizes))
    return own.source if own else ""
