"""Assignment of frozen weights to layers, as in a network with LoRA's adapters (Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.array_types import Array
from paceline.workload.builders.adapters.targets import PRODUCTS
from paceline.workload.layers import FROZEN, Layer
from paceline.workload.table import Workload


def frozen_of_layers(workload: Workload) -> Array:
    """Return the elements of frozen weights in each layer, (layers,). They sum to ``workload.frozen``.

    A layer holds its products' untrained matrices. Other frozen weights, as a table of tokens, count with the first layer.
    """
    own: Array = np.array([matrix_elements(layer) for layer in workload.layers])
    for parameter in workload.parameters:
        own[parameter.layer] -= parameter.size
    own = np.maximum(own, 0.0)
    known = float(own.sum())
    if known > workload.frozen:  # for example two layers share a table
        own *= workload.frozen / known
    elif len(own):
        own[0] += workload.frozen - known
    return own


def coded_bytes_of_layers(workload: Workload) -> Array:
    """Return the bytes of frozen weights in each layer as codes without scales, (layers,). Zeros if nothing is packed.

    Linear layers and experts are packed, the output layer is not. The mean of all gives the width of the others.
    """
    own = frozen_of_layers(workload)
    if not workload.packed_bits:
        return np.zeros(len(own))
    packed = np.array(
        [layer.kind in PRODUCTS and not layer.is_logits and matrix_elements(layer) > 0 for layer in workload.layers]
    )
    codes = workload.packed_bits / 8 * own * packed
    others = own * ~packed
    rest = workload.code_bits / 8 * workload.frozen - float(codes.sum())
    each: Array = codes + others * (rest / float(others.sum()) if others.sum() else 0.0)
    return each


def coded_beside(workload: Workload) -> Mapping[str, int]:
    """Return the bytes of codes that are gathered with each parameter, by its name; empty if nothing is packed."""
    return _beside(workload, coded_bytes_of_layers(workload)) if workload.packed_bits else {}


def frozen_beside(workload: Workload) -> Mapping[str, int]:
    """Return the frozen elements that are gathered with each parameter, by its name.

    They are those of its layer, and of the following ones up to the layer of the next parameter.
    """
    return _beside(workload, frozen_of_layers(workload)) if workload.frozen else {}


def _beside(workload: Workload, of_layers: Array) -> Mapping[str, int]:
    if not workload.parameters:
        return {}
    first = {parameter.layer: parameter.name for parameter in reversed(workload.parameters)}
    starts = sorted(first)
    owners = np.maximum(np.searchsorted(starts, np.arange(len(workload.layers)), side="right") - 1, 0)
    sums = np.bincount(owners, of_layers, len(starts))
    return {first[layer]: round(float(elements)) for layer, elements in zip(starts, sums, strict=True)}


def matrix_elements(layer: Layer) -> float:
    """Return the number of elements in all matrices of the forward pass's products; 0 for a whole network."""
    if layer.kind == FROZEN:
        return 0.0
    products = (o for o in layer.operations if not o.backward and o.kind in ("matmul", "conv") and o.grows == "m")
    return sum(o.k * o.n * max(1.0, o.batch) for o in products)
