"""Kernels that a host launches, and the seconds that it takes for each.

Ordinary software launches all. Tuned software replays graphs, but for blocks of experts that drop no token: how many rows an
expert gets is known behind the router alone, and no graph holds products of unknown size (Megatron-Core, README of
``transformer/moe``, CUDA graph support; Megatron-Bridge's presets for H100 ask for none). There the host launches a product
for each expert of the device (Transformer Engine, ``GroupedLinear``: cuBLAS on several streams, #853). On Blackwell one kernel
reads the sizes from the device's memory (#2360), and graphs hold it.
"""

from __future__ import annotations

import numpy as np

from paceline.array_types import Array
from paceline.calibration.constants import Efficiency
from paceline.hardware.device import Device
from paceline.prediction.exchange_plan import kept
from paceline.prediction.tensor_parallel import is_expert
from paceline.strategy.sharding import block
from paceline.workload.table import Workload

_EACH_EXPERT_ON = ("Volta", "Turing", "Ampere GA100", "Ampere GA10x", "Ada", "Hopper")


def host_seconds(device: Device, e: Efficiency) -> float:
    """Seconds that the host takes for a kernel that it launches. The constants are of GPUs' hosts: a CPU launches nothing, a
    TPU runs compiled programs."""
    if device.kind != "gpu":
        return 0.0
    if e.level == "tuned" and device.architecture in _EACH_EXPERT_ON:
        return e.expert_host_s
    return e.host_s


def host_launches(workload: Workload, e: Efficiency) -> Array:
    """Kernels that it launches in each layer's forward and backward pass, (2, layers); of tuned software those of blocks with
    experts."""
    tuned = e.level == "tuned"
    return kept(workload, ("host launches", tuned), lambda: _counted(workload, tuned))


def _counted(workload: Workload, tuned: bool) -> Array:
    layers = workload.layers
    blocks = [block(f"{layer.name}.") for layer in layers]
    mixed = {own for own, layer in zip(blocks, layers, strict=True) if is_expert(layer.name)}
    launches = np.zeros((2, len(layers)))
    for number, (own, layer) in enumerate(zip(blocks, layers, strict=True)):
        for o in layer.operations if not tuned or own in mixed else ():
            apart = tuned and o.kind == "matmul" and is_expert(layer.name)
            launches[int(o.backward), number] += o.calls * (o.batch if apart else 1.0)
    return launches
