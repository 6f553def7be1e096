"""Memory of a device that no tensor of the training holds: the runtime, its libraries, and communicators.

Sources are in ``runtime_memory.toml``. A communicator's size was not fitted to any peak of a training.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device
from paceline.strategy.parallelism import WITHIN_LAYER, Parallelism

MIB = 2.0**20
_INNERMOST_FIRST = (*WITHIN_LAYER[:2], "data", "pipeline")
"""Dimensions of a mesh, neighbours first. Those of experts lie across them."""


@cache
def _table() -> dict[str, Any]:
    import tomllib

    text = files("paceline.prediction.step").joinpath("runtime_memory.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def context_bytes(device: Device) -> float:
    """Return bytes of the device's context with its loaded kernels; 0 for a CPU."""
    if device.kind == "cpu":
        return 0.0
    sizes = _table()["context"]
    return MIB * float(sizes.get(device.architecture, sizes[device.kind]))


def workspace_bytes(device: Device) -> float:
    """Return bytes of the workspaces of the library of matrix products; 0 for other devices than GPUs."""
    if device.kind != "gpu":
        return 0.0
    sizes = _table()["workspace"]
    return MIB * float(sizes["handles"] * sizes.get(device.architecture, sizes["each"]))


@dataclass(frozen=True, slots=True)
class Communicator:
    """Devices that share a communicator. ``inside``: how many of them are in one node. ``sends``: neighbours to which a device
    sends with point-to-point calls."""

    name: str
    devices: int
    inside: int
    sends: int = 0


def groups(mesh: Parallelism, node: int, *, megatron: bool = False) -> Iterator[Communicator]:
    """Yield the communicators of a device.

    The whole world has one. Each dimension of the mesh that is smaller has its own. Megatron-Core has further ones: for the
    norm of a stage's gradients, and for embeddings at both ends of a pipeline (``core/parallel_state.py``).

    Args:
        node: devices of a node.
    """
    world = mesh.data * mesh.model_devices
    if world == 1:
        return
    yield Communicator("world", world, min(world, node))
    inner, (*_, last) = 1, _INNERMOST_FIRST
    for name in _INNERMOST_FIRST:
        size = getattr(mesh, name)
        inside = min(size, max(1, node // inner))
        inner *= size
        if 1 < size < world:
            yield Communicator(name, size, inside, sends=2 if name == last else 0)
    if mesh.expert > 1:
        inside = min(mesh.expert, max(1, node // (mesh.tensor if mesh.expert_devices > mesh.expert else 1)))
        yield Communicator("expert", mesh.expert, inside, sends=mesh.expert - 1)
    if mesh.shard_devices and mesh.shard_devices < mesh.replica_count:
        copies = mesh.replica_count // mesh.shard_devices
        yield Communicator("copies of a shard", copies, max(1, node // mesh.shard_devices))
    stage = mesh.tensor * mesh.pipeline
    if megatron and stage < world and mesh.tensor > 1 and mesh.pipeline > 1:
        yield Communicator("model", stage, min(stage, node))
    if megatron and mesh.pipeline > 1:
        yield Communicator("embeddings", 2, 2 if inner <= node else 1)


def communicator_bytes(group: Communicator, cluster: Cluster) -> float:
    """Return bytes of one communicator on each of its devices."""
    device, sizes = cluster.device, _table()["nccl"]
    if device.architecture.startswith(("CDNA", "RDNA")):
        return MIB * float(_table()["rccl"]["each"])
    nvlink = cluster.intra_link.kind == "nvlink"
    crosses = group.devices > group.inside
    channels = sizes["pcie"] if not nvlink else sizes["network"] if crosses else sizes["nvlink"]
    found = sizes["base"] + channels * sizes["pair"] * (1 if group.devices == 2 else 2)
    if nvlink and group.inside > 2 and device.architecture in sizes["nvls_architectures"]:
        found += sizes["nvls"] * min(group.inside, 8) / 8
    if nvlink and group.sends:
        found += min(group.sends, group.inside - 1) * sizes["send_channels"] * sizes["pair"]
    return MIB * float(found)


def communicators_bytes(mesh: Parallelism, cluster: Cluster, *, megatron: bool = False) -> float:
    """Return bytes of all communicators of a device; 0 for other devices than GPUs, whose compiled programs hold their own."""
    if cluster.device.kind != "gpu":
        return 0.0
    found = sum(communicator_bytes(group, cluster) for group in groups(mesh, max(cluster.node_sizes), megatron=megatron))
    if found and cluster.device.architecture.startswith(("CDNA", "RDNA")):
        found += MIB * float(_table()["rccl"]["first"])
    return found
