"""Cost of local steps. A step is the mean over the steps from one exchange of a fragment to its next.

``step = compute + (exchange + outer step) / H``. An exchange that overlaps d steps of compute costs only its excess over them.
The sources are those of ``strategy/local_steps.py``.
"""

from __future__ import annotations

from math import ceil

from paceline.calibration.constants import Efficiency
from paceline.hardware.device import Device
from paceline.prediction.exchange.exchange_plan import BucketSizes
from paceline.prediction.passes.compute import FUSED, memory_rate
from paceline.strategy.compression.formats import FP32
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

_WORDS = {True: 14, False: 8}
"""fp32 values read or written per parameter in an exchange, by whether the outer step has momentum.

The pseudo-gradient: two read, one written. The step: three for the momentum, three for Nesterov's sum, three for the anchor.
The new weights: two."""
_KERNELS = 2
"""Kernels of each tensor: its difference from the anchor, and its new weights."""


def outer_seconds(workload: Workload, strategy: Strategy, device: Device, efficiency: Efficiency) -> tuple[float, float]:
    """Return seconds a step of memory traffic and of kernel launches for pseudo-gradients and outer steps."""
    local = strategy.local
    if local.sync_every == 1 or strategy.world_size == 1:
        return 0.0, 0.0
    kept = local.outer_momentum > 0
    moved = 4 * _WORDS[kept] * workload.num_parameters / memory_rate(device, efficiency)
    tensors = len(workload.parameters)
    launched = (
        _KERNELS * (ceil(tensors / FUSED) if efficiency.level == "tuned" else tensors) + (3 if kept else 1) * local.fragments
    )
    factor = efficiency.factor_on(device.board) / local.sync_every
    return moved * factor, launched * efficiency.launch_s[device.kind] * factor


def beside_share(strategy: Strategy, overlap: bool) -> float:
    """Return the share of a step's compute that each fragment's exchange overlaps, as a mean over the steps."""
    local = strategy.local
    return local.sync_delay / local.sync_every if overlap else 0.0


def local_bytes(workload: Workload, strategy: Strategy, plan: BucketSizes) -> dict[str, float]:
    """Return bytes of the anchor, the outer momentum, and a fragment's pseudo-gradient; empty without local steps."""
    if strategy.sync_every == 1 or not plan.count:
        return {}
    whole = float(FP32.push_bytes(workload.num_parameters))
    return {
        "anchor": whole,
        "outer momentum": whole if strategy.local.outer_momentum else 0.0,
        "pseudo-gradient": 4.0 * max(plan.elements.tolist()),
    }
