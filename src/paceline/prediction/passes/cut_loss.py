"""Passes with a cut cross entropy: both compute the logits and neither writes them (Wijmans et al. 2024, section 4)."""

from __future__ import annotations

import numpy as np

from paceline.array_types import Array
from paceline.prediction.passes.compute import Seconds
from paceline.workload.prepared import once
from paceline.workload.table import Workload


@once
def _logits(workload: Workload) -> Array:
    """Return 1 for the product with the vocabulary, (layers,)."""
    return np.array([float(layer.is_logits) for layer in workload.layers])


@once
def _other_layers(workload: Workload) -> Array:
    """Return 0 for layers of the loss and 1 for all others, (layers,)."""
    return np.array([float(layer.kind != "loss") for layer in workload.layers])


def with_cut_loss(workload: Workload, forward: Seconds, backward: Seconds) -> tuple[Seconds, Seconds]:
    """Return the passes with the product of the logits again in the backward pass, and without kernels of the loss."""
    first, second = forward.weighted(_other_layers(workload)), backward.weighted(_other_layers(workload))
    return first, second.plus(first.weighted(_logits(workload)))
