"""Systolic arrays, which multiply on TPU and Trainium: padding of small products, and results that other units fetch.

Sources: AWS, Trainium architecture guide for NKI (Tensor Engine, PSUM); Austin et al., How to Scale Your Model, part 2.
"""

from __future__ import annotations

import numpy as np

from paceline.array_types import Array, Ints
from paceline.prediction.passes.operation_table import ATTENTION, MATMUL, OperationTable

_LEFT = np.array([1.0, 1.0, 0.5, 0.0, 1.0])
"""Share of the FLOPs whose products leave results in an accumulator, by kind of operation. In attention those are the scores;
results of the other half are few. Kernels without products leave none."""


def systolic_efficiency(kind: Ints, m: Array, n: Array, k: Array, side: float) -> Array:
    """Return the share of the rate that products of (m, k) by (k, n) reach on arrays of a ``side``, 0 to 1, (rows,).

    Half of the products of attention have the width of a head as their depth, the others as a size of their result.

    Args:
        kind: kinds of operations, as in ``OperationTable``.
    """
    first = padded_share(m, n, k, side)
    second = np.where(kind == ATTENTION, padded_share(m, k, n, side), first)
    share: Array = 2 / (1 / first + 1 / second)
    return share


def padded_share(m: Array, n: Array, k: Array, side: float) -> Array:
    """Return the share of the rate of one product, 0 to 1; 1 if a size is 0.

    An array holds a part of one operand, (side, side), and the rows of the other pass through it. The part is padded along the
    depth and along its other size. Fewer rows than half a side take as long as these. The compiler holds the operand that
    wastes less.
    """

    def padded(size: Array) -> Array:
        return size / np.maximum(np.ceil(size / side) * side, 1.0)

    def passed(size: Array) -> Array:
        return size / np.maximum(size, side / 2)

    best = padded(k) * np.maximum(padded(n) * passed(m), padded(m) * passed(n))
    return np.where(m * n * k > 0, best, 1.0)


def product_results(kind: Ints, flops: Array, depth: Array) -> Array:
    """Return the numbers that products of a ``depth`` leave in an accumulator, (rows,), from which vector units fetch them."""
    results: Array = _LEFT[kind] * flops / (2 * np.maximum(depth, 1.0))
    return results


def turned_elements(table: OperationTable, m: Array, n: Array, k: Array, batch: Array) -> Array:
    """Return the elements of operands that a Trainium transposes for gradients of weights, (rows,).

    Both operands of a product lie along its depth in the memory of the array. Inputs and gradients lie along the features for
    all other products, and gradients of weights sum over the tokens. A transposition is a product with a unit matrix, whose
    results are fetched (the guide above, Layout, Alternative Use Case). The choice that a compiler always transposes
    them was made in sight of AWS Neuron's rows.
    """
    over_tokens = (table.kind == MATMUL) & (table.grows[:, 2] > 0)
    elements: Array = np.where(over_tokens, table.calls * batch * (m + n) * k, 0.0)
    return elements
