"""Seconds of Muon's orthogonalization: five Newton-Schulz steps of each matrix in a block, in bf16.

A step of an m by n matrix X, m at most n, is three products: X Xt, its square, and the polynomial times X (Jordan et al. 2024,
Muon; PyTorch, ``torch/optim/_muon.py``). It has ``4 m^2 n + 2 m^3`` FLOPs. Devices that divide a matrix orthogonalize their
parts (Megatron-Core, ``TensorParallelMuon``, ``blockwise``). Replicas that share out state update whole matrices each
(Megatron-Core, ``LayerWiseDistributedOptimizer``). ``exchange/matrix_exchange.py`` says who else shares them out.
"""

from __future__ import annotations

from math import prod

import numpy as np

from paceline.array_types import Array
from paceline.calibration.accelerators import on_device
from paceline.calibration.constants import Efficiency
from paceline.calibration.product_curves import has_curve
from paceline.hardware.device import Device
from paceline.hardware.precision import WIDE
from paceline.prediction.passes.compute import curve_of, peak_rate
from paceline.prediction.passes.products import product_seconds
from paceline.strategy.updates.matrix_rule import rest_reasons
from paceline.workload.layers import Parameter
from paceline.workload.prepared import once
from paceline.workload.table import Workload

NEWTON_SCHULZ_STEPS = 5
"""Steps of the iteration (PyTorch, ``DEFAULT_NS_STEPS``)."""
STEP_KERNELS = 3
"""Kernels of a step of the iteration."""


def _matrix(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return rows, columns and number of the matrices of a tensor; a convolution is one, of all inputs of each output."""
    if len(shape) > 3:
        return shape[0], prod(shape[1:]), 1
    return shape[-2], shape[-1], prod(shape[:-2])


@once
def matrices(workload: Workload) -> Array:
    """Return the smaller side, the larger side and the number of each kind of matrix, (3, kinds)."""
    found: dict[tuple[int, int], int] = {}
    for parameter in _orthogonalized(workload):
        rows, columns, count = _matrix(parameter.shape)
        key = min(rows, columns), max(rows, columns)
        found[key] = found.get(key, 0) + count
    return np.array([(*key, count) for key, count in found.items()], dtype=np.float64).reshape(-1, 3).T


@once
def _orthogonalized(workload: Workload) -> tuple[Parameter, ...]:
    """Return the tensors that consist of hidden matrices, by the rule of ``paceline.Muon``. AdamW takes the others."""
    tables = {p.name for p in workload.parameters if workload.layers[p.layer].kind == "Embedding"}
    rest = rest_reasons([(p.name, p.shape) for p in workload.parameters], tables)
    return tuple(p for p in workload.parameters if p.name not in rest)


@once
def matrix_elements(workload: Workload) -> int:
    """Return the elements of all orthogonalized matrices."""
    return sum(p.size for p in _orthogonalized(workload))


@once
def matrix_tensors(workload: Workload) -> int:
    """Return the number of tensors of orthogonalized matrices."""
    return len(_orthogonalized(workload))


def newton_schulz_flops(workload: Workload) -> float:
    """Return the FLOPs of the orthogonalization of all matrices."""
    m, n, count = matrices(workload)
    return float((NEWTON_SCHULZ_STEPS * count * (4 * m * m * n + 2 * m**3)).sum())


def newton_schulz_seconds(workload: Workload, device: Device, efficiency: Efficiency) -> tuple[float, float]:
    """Return seconds of the products of all matrices and of their launches."""
    m, n, count = matrices(workload)
    if not len(m):
        return 0.0, 0.0
    precision = WIDE if WIDE in device.peak_flops else "fp32"
    e = on_device(efficiency, device)
    if has_curve(device, precision):
        curve = curve_of(device, precision, e)
        step = sum(product_seconds(curve, *sizes)[0] for sizes in ((m, m, n), (m, m, m), (m, n, m))) / e.matrix_share
    else:
        step = (4 * m * m * n + 2 * m**3) / peak_rate(device, precision, e)
    factor = e.factor_on(device.board)
    launches = NEWTON_SCHULZ_STEPS * STEP_KERNELS * float(count.sum()) * e.launch_s[device.kind]
    return NEWTON_SCHULZ_STEPS * float((count * step).sum()) * factor, launches * factor
