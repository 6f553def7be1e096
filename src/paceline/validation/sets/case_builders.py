"""What adapters share: networks by name, half precision by device, batches that divide."""

from __future__ import annotations

from typing import Any

from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device, Link
from paceline.strategy.strategy import Strategy
from paceline.validation.case import Setting
from paceline.validation.sets.hardware_aliases import cluster
from paceline.workload import TransformerShape, Workload

NO_DEVICE = "device not in the catalogue"
NO_WORKLOAD = "model not among the workloads"
NO_VALUE = "no measurement in the row"
LONG_WAIT = "synchronisation longer than its step"
NO_BATCH = "batch not given, or smaller than the devices"
PARALLEL = "tensor or pipeline parallel"


def named(name: str | None, **dimensions: Any) -> Workload | None:
    """The workload of that name; None where there is none."""
    if not name:
        return None
    try:
        return Workload.named(name, **dimensions)
    except UserError:
        return None


def half(device: Device) -> str:
    """The precision that mixed-precision training uses: fp16 or bf16 where the device has one, else fp32."""
    preferred = ("fp16", "bf16") if device.kind == "gpu" else ("bf16", "fp16")
    return next((p for p in preferred if p in device.peak_flops), "fp32")


def gpt(layers: int, hidden: int, heads: int, seq_len: int, vocabulary: int) -> Workload | None:
    """GPT of these dimensions, as before fused attention."""
    try:
        shape = TransformerShape(layers=layers, hidden=hidden, heads=heads, vocabulary=vocabulary)
        return Workload.from_shape(shape, seq_len, name=f"gpt-{layers}x{hidden}", fused_attention=False)
    except UserError:
        return None


def setting(
    machines: Cluster, micro_batch: int, precision: str, optimizer: str = "momentum", weight: float = 1.0, **choices: Any
) -> Setting:
    """``micro_batch`` samples on each replica at once. Raises UserError as ``Strategy`` does."""
    n = machines.world_size
    replicas = n // (int(choices.get("tensor", 1)) * int(choices.get("pipeline", 1)))
    batch = micro_batch * replicas * int(choices.get("grad_accum_steps", 1))
    strategy = Strategy.of(world_size=n, global_batch_size=batch, precision=precision, optimizer=optimizer, **choices)
    return Setting(machines, strategy, weight)


def uneven(
    device: Device, devices: int, nodes: int, between: Link | str | None, micro_batch: int, precision: str, optimizer: str
) -> tuple[Setting, ...]:
    """``devices`` spread over ``nodes``; where they do not divide, the two even clusters around them, by distance."""
    low = max(1, devices // nodes)
    high = -(-devices // nodes)
    share = (devices - low * nodes) / nodes if high > low else 0.0
    parts = ((low, 1 - share), (high, share))
    return tuple(
        setting(cluster(device, each, nodes, between), micro_batch, precision, optimizer, weight)
        for each, weight in parts
        if weight > 0
    )
