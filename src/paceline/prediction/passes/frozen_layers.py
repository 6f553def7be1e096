"""Which layers have the weights that are not trained: those beside LoRA's adapters (Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.array_types import Array
from paceline.workload.layers import Layer
from paceline.workload.table import Workload


def frozen_of_layers(workload: Workload) -> Array:
    """Elements of frozen weights in each layer, (layers,). They sum to ``workload.frozen``.

    A layer has what its products multiply by and does not train. What no product multiplies by, such as a table of tokens, is
    counted with the first layer.
    """
    own: Array = np.array([_multiplied(layer) for layer in workload.layers])
    for parameter in workload.parameters:
        own[parameter.layer] -= parameter.size
    own = np.maximum(own, 0.0)
    known = float(own.sum())
    if known > workload.frozen:  # such as a table that two layers share
        own *= workload.frozen / known
    elif len(own):
        own[0] += workload.frozen - known
    return own


def frozen_beside(workload: Workload) -> Mapping[str, int]:
    """By the name of a parameter, the frozen elements that are gathered with it: of its layer, and of those behind it up to the
    layer of the next one."""
    if not workload.frozen or not workload.parameters:
        return {}
    first = {parameter.layer: parameter.name for parameter in reversed(workload.parameters)}
    starts = sorted(first)
    owners = np.maximum(np.searchsorted(starts, np.arange(len(workload.layers)), side="right") - 1, 0)
    sums = np.bincount(owners, frozen_of_layers(workload), len(starts))
    return {first[layer]: round(float(elements)) for layer, elements in zip(starts, sums, strict=True)}


def _multiplied(layer: Layer) -> float:
    """Elements of all matrices that the forward pass multiplies by."""
    products = (o for o in layer.operations if not o.backward and o.kind in ("matmul", "conv") and o.grows == "m")
    return sum(o.k * o.n * max(1.0, o.batch) for o in products)
