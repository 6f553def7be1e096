"""Experts that the host runs one after another, as frameworks do without grouped products.

transformers before version 5 loops over the experts. For each it finds its tokens on the host, gathers their rows, runs three
products, weighs the result and adds it to the others' (4.50, ``models/mixtral/modeling_mixtral.py``).
"""

from __future__ import annotations

from dataclasses import replace

from paceline.prediction.passes.layer_roles import is_expert
from paceline.workload.layers import Layer, Operation
from paceline.workload.prepared import once
from paceline.workload.table import Workload

FORWARD_KERNELS, BACKWARD_KERNELS = 9, 6
"""Small kernels of an expert in addition to products and activations: in the forward pass four find its tokens (``where``:
count, scan, write, cast), one gathers their rows, two read and multiply their weights, one adds, one casts; in the backward
pass the gradients of the gather, the product and the sum."""


@once
def with_looped_experts(workload: Workload) -> Workload:
    """Return the network with the experts of a block one by one; unchanged without experts."""
    layers = tuple(_looped(layer) if is_expert(layer.name) else layer for layer in workload.layers)
    return workload if all(a is b for a, b in zip(layers, workload.layers, strict=True)) else replace(workload, layers=layers)


def _looped(layer: Layer) -> Layer:
    """Return a layer of experts with a call for each expert."""
    count = max((int(o.batch) for o in layer.operations if o.kind == "matmul"), default=0)
    if count < 2:
        return layer
    operations = [replace(o, calls=o.calls * count, batch=1.0) if o.kind == "matmul" else o for o in layer.operations]
    if layer.name.endswith("experts.contract"):
        operations += [
            Operation(kind="memory", backward=False, calls=count * FORWARD_KERNELS),
            Operation(kind="memory", backward=True, calls=count * BACKWARD_KERNELS),
        ]
    return replace(layer, operations=tuple(operations))
