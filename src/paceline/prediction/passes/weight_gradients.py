"""Part of the backward pass that computes gradients of weights, which a zero-bubble pipeline runs later.

Source: Qi et al. 2024, Zero Bubble Pipeline Parallelism, arXiv:2401.10241, section 2 (the two parts, and their memory).
"""

from __future__ import annotations

import numpy as np

from paceline.array_types import Array
from paceline.calibration.constants import Efficiency
from paceline.hardware.device import Device
from paceline.prediction.passes.compute import operation_seconds
from paceline.prediction.passes.layer_roles import forward_product, shares_input, style
from paceline.prediction.passes.operation_table import operation_table
from paceline.workload.layers import Numbers
from paceline.workload.prepared import once
from paceline.workload.table import Workload

_DEPTH = 2
"""Column of a product's depth. Only in the gradient of a weight it grows with the micro batch."""


def weight_seconds(workload: Workload, micro_batch_size: int, precision: str, device: Device, efficiency: Efficiency) -> Array:
    """Return seconds of the products that give the gradients of weights, of one micro batch, (layers,).

    Raises:
        UserError: the device does not have that precision.
    """
    table = operation_table(workload)
    kernels = operation_seconds(table, micro_batch_size, precision, device, efficiency).kernels
    seconds = kernels * efficiency.factor_on(device.board)
    chosen = table.backward & (table.grows[table.row, _DEPTH] > 0)
    return np.bincount(table.layer[chosen], seconds[table.row[chosen]], table.layers).astype(np.float64)


@once
def weight_bytes(workload: Workload, numbers: Numbers, sharers: int = 1) -> float:
    """Return bytes of one sample that are stored from the gradient of the inputs to that of the weights.

    They are the inputs of products and the gradients of their outputs; 32 s h of a block of a GPT of width h in 16 bits (table
    1 there).

    Args:
        sharers: devices of a sequence-parallel group. Each holds its tokens at the borders of a region of divided products, and
            gathers them again.
    """
    width = 4.0 if numbers == "fp32" else 2.0
    held = 0.0
    for layer in workload.layers:
        if (p := forward_product(layer)) is not None:
            entering, leaving = (sharers if style(layer) == side else 1 for side in ("columns", "rows"))
            entered = 0.0 if shares_input(layer) else p.k / entering
            held += width * p.m * (entered + p.n / leaving) * max(1.0, p.batch)
    return held
