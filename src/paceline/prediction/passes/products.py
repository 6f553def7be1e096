"""Seconds of matrix products on matrix units, from the curves of measured products.

A product is computed in tiles, and the tiles in waves over the device's multiprocessors. A tile takes the time of its
multiply-adds and of its operands on their way to the unit, and a fixed time to fill and drain the pipeline. Few tiles of great
depth are split along the depth. Meanwhile the memory delivers each operand once, and again where a wave needs more than the
cache holds. The library's choice of a tile is taken to be the fastest one (NVIDIA, Deep Learning Performance guide, Matrix
multiplication background).

Long products on their own heat the board, and its clock falls. In a step they alternate with other kernels, and the power is an
average of many milliseconds: they run at the clock of short ones. This was chosen with rows in sight: tuned steps on Hopper,
predicted without any of Hopper, were 15 % slow at the fallen clock and 10 % before measured products.
"""

from __future__ import annotations

from itertools import product as pairs

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.calibration.product_curves import KNOTS, ProductCurve

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 16), (16, 64))
"""Rows and columns of the tiles. Wider ones of Blackwell's pairs of units count as a higher rate of operands."""
SPLITS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Parts of a product that is split along its depth."""
_ROWS, _COLUMNS, _PARTS = (
    np.array(column, dtype=np.float64)[:, None]
    for column in zip(*((*tile, parts) for parts, tile in pairs(SPLITS, TILES)), strict=True)
)
_AREAS, _SIDES = _ROWS * _COLUMNS, _ROWS + _COLUMNS
_PARTIAL = np.where(_PARTS > 1, 2 * _PARTS, 0.0)
"""Times that a split product writes and reads its parts, in results."""
_FIRST, _STEP, _LAST = (
    np.array(column)[:, None] for column in zip(*((k[0], k[1] - k[0], len(k) - 1.0) for k in KNOTS), strict=True)
)
_CORNERS = np.indices((2, 2, 2)).reshape(3, 8)
_STRIDES = np.array([len(KNOTS[1]) * len(KNOTS[2]), len(KNOTS[2]), 1])
_OFFSETS = (_STRIDES @ _CORNERS)[:, None]
_BLOCK = 32.0
"""Depth that a unit multiplies in one go."""
_RESULT = 2.0
"""Bytes of an element of the result."""


def product_seconds(
    curve: ProductCurve,
    m: Array,
    n: Array,
    k: Array,
    batch: Array | float = 1.0,
    *,
    ragged: Bools | bool = False,
) -> tuple[Array, Bools]:
    """Return seconds of ``batch`` products of (m, k) by (k, n), as in training, and whether computing rather than memory takes
    most of each.

    The clock is that of short products, and the cache holds none of the operands. The time of the launch is not included.

    Args:
        m, n, k: sizes, (products,); the shape of the results too.
        ragged: whether the ``m`` of a batch is a mean of unequal ones, as of tokens by expert. Then a last tile is half empty.
    """
    seconds, computing = _body(curve, m, n, k, batch, ragged, alone=False)
    return seconds * np.exp(_correction(curve, m * batch, n, k)), computing


def measured_seconds(curve: ProductCurve, m: Array, n: Array, k: Array) -> Array:
    """Return seconds of one product repeated on its own, as benchmarks of kernels measure it, (products,).

    Small operands stay in the cache, the clock falls only in long products, the launch counts, and with a recipe the cast of
    the (m, k) operand.
    """
    body, _ = _body(curve, m, n, k, 1.0, False, alone=True)
    return body * np.exp(_correction(curve, m, n, k)) + overhead_seconds(curve, m, n, k)


def overhead_seconds(curve: ProductCurve, m: Array, n: Array, k: Array) -> Array:
    """Return the seconds of the launch and of the cast in ``measured_seconds``, (products,)."""
    kept = _kept(curve, (_RESULT + curve.width) * m * k)
    cast = m * k * curve.cast_bytes / (curve.bandwidth * curve.memory) * (1 - curve.cast_cached * kept)
    return curve.launch_s + curve.cast_s + cast + 0 * n


def _body(
    curve: ProductCurve, m: Array, n: Array, k: Array, batch: Array | float, ragged: Bools | bool, *, alone: bool
) -> tuple[Array, Bools]:
    """Return seconds without launch and correction, and whether computing takes most of them."""
    units, width = curve.units, curve.width
    rate, feed = curve.peak * curve.share / units, curve.peak * curve.feed / units
    rows = m / _ROWS
    rows = np.where(ragged, np.maximum(rows + 0.5, 1.0), np.ceil(rows)) if np.any(ragged) else np.ceil(rows)
    work = batch * rows * np.ceil(n / _COLUMNS) * (_PARTS / units)
    waves = np.maximum(work + curve.whole * (np.ceil(work) - work), 1.0)
    depth = np.ceil(k / (_PARTS * _BLOCK)) * _BLOCK
    tile_s = np.hypot(_AREAS * (2 / rate), _SIDES * (width / feed))
    computing = waves * (depth * tile_s + (curve.tile_s + _AREAS * (_RESULT * curve.written / feed)))
    if alone:
        computing = computing / (1 - (1 - curve.sustained) / (1 + curve.heating_s / np.maximum(computing, 1e-12)))
    area = batch * m * n
    operands, result = (width * batch) * (m + n) * k, _RESULT * area
    again = (area * k) * (2 * width * curve.reread / np.sqrt(units * _AREAS))
    moved = np.maximum(operands, again) + (1 + _PARTIAL) * result
    if alone:
        moved = moved * (1 - _kept(curve, operands + result))
    memory = moved / (curve.bandwidth * curve.memory)
    seconds = computing**curve.sharpness + memory**curve.sharpness
    seconds = np.where((_PARTS == 1) | (depth >= curve.split), seconds, np.inf)
    best = seconds.argmin(axis=0), np.arange(seconds.shape[1])
    return seconds[best] ** (1 / curve.sharpness), computing[best] >= memory[best]


def _kept(curve: ProductCurve, size: Array) -> Array:
    """Return the share of the traffic that a cache saves if the same ``size`` bytes are used again."""
    kept: Array = 1 / (1 + (size / (curve.cached * curve.units)) ** curve.cached_sharpness)
    return kept


def _correction(curve: ProductCurve, m: Array, n: Array, k: Array) -> Array:
    """Return the logarithm of the correction of each product, (products,)."""
    if not curve.correction.size:
        return np.zeros_like(m * n * k)
    corners, weights = corner_weights(m, n, k)
    found: Array = (curve.correction.ravel()[corners] * weights).sum(axis=0)
    return found


def corner_weights(m: Array, n: Array, k: Array) -> tuple[Ints, Array]:
    """Return the flat indices of the eight entries of a table of corrections around each product, and their weights, (8,
    products). Sizes outside the table take its edge."""
    sizes = np.log2(np.maximum([np.maximum(m, n), np.minimum(m, n), k], 1.0))
    place = np.clip((sizes - _FIRST) / _STEP, 0.0, _LAST)
    low = np.minimum(place.astype(np.int64), _LAST.astype(np.int64) - 1)
    part = place - low
    sides = np.array([1 - part, part])  # (low or high, axis, products)
    weights = sides[_CORNERS[0], 0] * sides[_CORNERS[1], 1] * sides[_CORNERS[2], 2]
    return _STRIDES @ low + _OFFSETS, weights
