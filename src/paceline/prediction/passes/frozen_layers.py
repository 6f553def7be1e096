"""Assignment of frozen weights to layers, as in a network with LoRA's adapters (Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.array_types import Array
from paceline.workload.layers import FROZEN, Layer
from paceline.workload.table import Workload


def frozen_of_layers(workload: Workload) -> Array:
    """Return the elements of frozen weights in each layer, (layers,). They sum to ``workload.frozen``.

    A layer holds its products' untrained matrices. Other frozen weights, as a table of tokens, count with the first layer.
    """
    own: Array = np.array([_multiplied(layer) for layer in workload.layers])
    for parameter in workload.parameters:
        own[parameter.layer] -= parameter.size
    own = np.maximum(own, 0.0)
    known = float(own.sum())
    if known > workload.frozen:  # for example two layers share a table
        own *= workload.frozen / known
    elif len(own):
        own[0] += workload.frozen - known
    return own


def frozen_beside(workload: Workload) -> Mapping[str, int]:
    """Return the frozen elements that are gathered with each parameter, by its name.

    They are those of its layer, and of the following ones up to the layer of the next parameter.
    """
    if not workload.frozen or not workload.parameters:
        return {}
    first = {parameter.layer: parameter.name for parameter in reversed(workload.parameters)}
    starts = sorted(first)
    owners = np.maximum(np.searchsorted(starts, np.arange(len(workload.layers)), side="right") - 1, 0)
    sums = np.bincount(owners, frozen_of_layers(workload), len(starts))
    return {first[layer]: round(float(elements)) for layer, elements in zip(starts, sums, strict=True)}


def _multiplied(layer: Layer) -> float:
    """Return the number of elements in all matrices of the forward pass's products; 0 for a whole network."""
    if layer.kind == FROZEN:
        return 0.0
    products = (o for o in layer.operations if not o.backward and o.kind in ("matmul", "conv") and o.grows == "m")
    return sum(o.k * o.n * max(1.0, o.batch) for o in products)
