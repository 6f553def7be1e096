"""Seconds of layers, optimizer and codec on one device, by roofline.

A kernel takes ``max(FLOPs / (rate x e), bytes / bandwidth)`` (Williams, Waterman, Patterson 2009, Roofline, CACM 52(4)), and
before that the time in which the one before it drains and it starts. Products on the matrix units of measured designs follow
measured products (``products.py``). The efficiency e of other products, and of convolutions, follows from the shape. A library
computes a product in tiles, and the tiles in waves over the device's units, so empty parts of a tile or of the last wave are
lost. With a small depth k the pipeline spends much of its time on filling and draining (NVIDIA, Deep Learning Performance
guide, Matrix multiplication background, sections 3 and 4).

A kernel that only reads and writes has as many loads in flight as it has threads (Little's law). If each thread loads one
element at a time, the units get a fixed number of elements a cycle, whatever their width.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.calibration import attention as attention_kernels
from paceline.calibration.accelerators import on_device
from paceline.calibration.constants import Efficiency, assumed
from paceline.calibration.product_curves import ProductCurve, has_curve, product_curve
from paceline.hardware.device import Device
from paceline.hardware.precision import BYTES_PER_ELEMENT, PRECISIONS, RECIPES, WIDE, QuantisationRecipe
from paceline.prediction.passes.convolutions import convolution_seconds, is_channels_last, winograd_gain
from paceline.prediction.passes.operation_table import ATTENTION, CONV, MATMUL, MEMORY, SCAN, OperationTable, operation_table
from paceline.prediction.passes.products import product_seconds
from paceline.prediction.passes.systolic_arrays import product_results, systolic_efficiency, turned_elements
from paceline.strategy.optimizer import Optimizer
from paceline.strategy.updates.weight_update import PLAIN_UPDATE, WeightUpdate
from paceline.workload.table import Workload

_COUNTED = 4
"""Bytes of an element in a table of operations, which is in fp32."""

Resource = Literal[
    "compute",
    "memory bandwidth",
    "launch overhead",
    "network",
    "intra-node link",
    "codec",
    "stragglers",
    "input pipeline",
    "pipeline send",
    "pipeline bubble",
    "expert imbalance",
    "host",
]
RESOURCES: tuple[Resource, ...] = get_args(Resource)
"""Resources that a step can wait for."""
TILES = ((128, 128), (128, 64), (64, 64), (64, 32), (128, 16))
"""Rows and columns of the tiles of a product."""
_TILE_SIZES = np.array(TILES, dtype=np.float64).T[:, :, None]
STARVING: float = assumed("starving_ratio")
"""Ratio of matrix units to ordinary cores (V100) from which devices get the full shares of ``Efficiency``."""
FUSED: int = assumed("fused_tensors")
"""Tensors that one kernel of a fused optimizer updates."""
CAST_SHARE: float = assumed("cast_share")
"""Seconds of the casts of autocast over those of a streaming kernel of as many bytes."""
SPLIT: float = assumed("split_depth")
"""Least depth of a part when a product of few tiles is split along its depth (split-k)."""
SCAN_SHARE: float = assumed("scan_share")
"""Rates of the kernels of a chunked scan, relative to those of products and of streaming kernels."""
CAUSAL_BLOCK = 128
"""Keys of a block of causal attention."""
WINDOW_EDGE: float = assumed("window_edge")
"""Keys that a kernel computes for a query beyond each edge of a sliding window."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds per layer by limiting resource, (layers,); ``total`` is their sum.

    A kernel counts under ``flops`` or under ``bytes``, whichever is slower, and the time before it under ``launch``.
    ``plain_conv``: seconds of all layers in convolutions on ordinary cores.
    ``near``, ``far``: waits for collectives within the pass, by the link inside a node and by the network; 0 if no group of
    devices divides the layers. ``host``: waits for copies between the device and its host.
    """

    flops: Array
    bytes: Array
    launch: Array
    plain_conv: float = 0.0
    near: Array | float = 0.0
    far: Array | float = 0.0
    host: Array | float = 0.0

    @property
    def kernels(self) -> Array:
        """Seconds per layer without the collectives."""
        return self.flops + self.bytes + self.launch

    @property
    def repeated(self) -> Array:
        """Seconds per layer that recomputation spends again: all but copies to the host."""
        return self.flops + self.bytes + self.launch + self.near + self.far

    @property
    def total(self) -> Array:
        """Seconds per layer."""
        return self.flops + self.bytes + self.launch + self.near + self.far + self.host

    def scaled(self, factor: float) -> Seconds:
        """Return the kernels' seconds times ``factor``."""
        return replace(
            self,
            flops=self.flops * factor,
            bytes=self.bytes * factor,
            launch=self.launch * factor,
            plain_conv=self.plain_conv * factor,
        )

    def weighted(self, weights: Array) -> Seconds:
        """Return the kernels' seconds of each layer times its weight, (layers,). Convolutions keep theirs."""
        return replace(self, flops=self.flops * weights, bytes=self.bytes * weights, launch=self.launch * weights)

    def plus(self, other: Seconds) -> Seconds:
        """Return the kernels' seconds of both, layer by layer."""
        return replace(self, flops=self.flops + other.flops, bytes=self.bytes + other.bytes, launch=self.launch + other.launch)

    def of(self, layers: Sequence[int]) -> Seconds:
        """Return the seconds of some layers; ``plain_conv`` in proportion to their time."""
        at = np.asarray(layers, dtype=np.int64)
        whole = float(self.kernels.sum())
        share = float(self.kernels[at].sum()) / whole if whole else 0.0
        near, far, host = (np.broadcast_to(wait, self.flops.shape)[at] for wait in (self.near, self.far, self.host))
        return Seconds(self.flops[at], self.bytes[at], self.launch[at], self.plain_conv * share, near, far, host)

    def without(self, resources: Collection[str]) -> Seconds:
        """Return the seconds if the given resources took no time."""
        nothing = np.zeros_like(self.flops)
        return Seconds(
            nothing if "compute" in resources else self.flops,
            nothing if "memory bandwidth" in resources else self.bytes,
            nothing if "launch overhead" in resources else self.launch,
            0.0 if "compute" in resources else self.plain_conv,
            0.0 if "intra-node link" in resources else self.near,
            0.0 if "network" in resources else self.far,
            0.0 if "host" in resources else self.host,
        )


def peak_rate(device: Device, precision: str, efficiency: Efficiency) -> float:
    """Return FLOP/s of the best dense matmul: the catalogue's measurement, else a share of the datasheet's peak.

    If only another precision of the matrix units was measured, its share of the peak applies. The rate of a board without
    measurements is limited by its power. A recipe is faster than bf16 by the ratio of their peaks.

    Raises:
        UserError: the device does not have that precision.
    """
    peak = device.peak(precision).value
    if precision in RECIPES:
        return peak_rate(device, WIDE, efficiency) * peak / device.peak(WIDE).value
    if precision in device.matmul_flops:
        return device.matmul_flops[precision].value
    if not on_matrix_units(device, precision):
        return min(peak, allowed(device, efficiency.joules))
    for other, fact in device.matmul_flops.items():
        if not PRECISIONS[other].full:
            return peak * fact.value / device.peak(other).value
    fed = 1 - (1 - efficiency.matmul_share) * operand_demand(device, precision)
    half = device.peak_flops.get("fp16", device.peak(precision)).value
    return min(peak * fed, allowed(device, efficiency.matrix_joules) * peak / half)


def allowed(device: Device, joules: Mapping[str, float]) -> float:
    """Return FLOP/s that the board's power allows at its architecture's FLOP/J; inf if either is unknown."""
    per_joule = joules.get(device.architecture)
    return math.inf if per_joule is None or device.power is None else per_joule * device.power.value


def operand_demand(device: Device, precision: str) -> float:
    """Return the speed of the matrix units over fp32, relative to the eightfold at which they wait for operands; at most 1.

    Both read operands through the same caches, so slow units (GeForce accumulates at half rate) seldom wait. A systolic array
    reads its own.
    """
    if device.array is not None:
        return 1.0
    if precision in RECIPES:  # more operands by the same factor as their width is smaller
        precision = WIDE
    full = device.peak_flops.get("fp32")
    return 1.0 if full is None else min(1.0, device.peak(precision).value / full.value / STARVING)


def on_matrix_units(device: Device, precision: str) -> bool:
    """Return whether ``precision`` runs on matrix units.

    tf32, bf16 and all recipes do. fp16 does if the device has bf16, or if fp16 is more than twice as fast as fp32 (a P100 has
    no matrix units, GeForce boards halve the rate of theirs).
    """
    own = PRECISIONS[precision]
    if own.on_matrix_units or (own.scales_loss and WIDE in device.peak_flops):
        return True
    full = device.peak_flops.get("fp32")
    return full is None or device.peak(precision).value > 2.1 * full.value


def memory_rate(device: Device, efficiency: Efficiency) -> float:
    """Return bytes/s of a streaming kernel."""
    return device.memory_bandwidth.value * efficiency.memory_share


def shape_efficiency(
    m: Array,
    n: Array,
    k: Array,
    batch: Array,
    units: float,
    depth: float | Array,
    small: float,
    issued: float = math.inf,
    overhead: float = 0.0,
) -> Array:
    """Return the share of the rate that ``batch`` products of (m, k) by (k, n) reach on ``units`` units, 0 to 1; 1 if m is 0.

    The result is that of the best of ``TILES``. Every halving of the tile's area multiplies its rate by ``small``. A product of
    few tiles and a large depth is split along the depth.

    Args:
        issued: instructions that a unit can issue for each multiply-add.
        overhead: other instructions for each multiply-add of the largest tile. Loads of a tile grow with its sides, its
            computing with its area.
    """
    rows, columns = _TILE_SIZES  # one row of the arrays below for each tile
    areas = rows * columns
    true = batch * m * n
    tiles = batch * np.ceil(m / rows) * np.ceil(n / columns)
    parts = np.clip(np.floor(units / np.maximum(tiles, 1.0)), 1.0, np.maximum(np.floor(k / SPLIT), 1.0))
    work = tiles * parts
    waves = np.where(work > 4 * units, work / units, np.ceil(work / units))
    filled = true * parts / np.maximum(waves * units * areas, 1.0)
    deep = k / parts
    fed = np.minimum(issued / (1 + overhead * np.sqrt(areas[0] / areas)), 1.0)
    best = (fed * small ** np.log2(areas[0] / areas) * filled * deep / np.maximum(deep + depth, 1e-30)).max(axis=0)
    return np.where(true > 0, np.minimum(best, 1.0), 1.0)


def layer_seconds(
    workload: Workload,
    micro_batch_size: int,
    precision: str,
    device: Device,
    efficiency: Efficiency,
    weight_casts: float = 1.0,
    memory_format: str = "",
    autocast: bool = True,
) -> tuple[Seconds, Seconds]:
    """Return seconds of each layer's forward and backward pass for one micro batch.

    Args:
        weight_casts: share of the micro batches that cast the weights again, under a recipe.
        memory_format: that of convolutions, a name of ``MEMORY_FORMATS``; empty: the usual one of the software.
        autocast: whether a 16-bit precision casts fp32 weights and computes norms in fp32.

    Raises:
        UserError: the device does not have that precision.
    """
    table = operation_table(workload)
    last = is_channels_last(workload, memory_format, efficiency.level)
    seconds = operation_seconds(table, micro_batch_size, precision, device, efficiency, weight_casts, last, autocast)
    parts = np.stack([seconds.flops, seconds.bytes, seconds.launch])[:, table.row] * efficiency.factor_on(device.board)
    conv = table.kind[table.row] == CONV
    plain = not on_matrix_units(device, precision)

    def summed(chosen: Bools) -> Seconds:
        layer = table.layer[chosen]
        flops, moved, launch = (np.bincount(layer, part[chosen], table.layers).astype(np.float64) for part in parts)
        return Seconds(flops, moved, launch, float(parts[:, chosen & conv].sum()) if plain else 0.0)

    return summed(~table.backward), summed(table.backward)


def operation_seconds(
    table: OperationTable,
    micro_batch_size: float,
    precision: str,
    device: Device,
    efficiency: Efficiency,
    weight_casts: float = 1.0,
    channels_last: bool = False,
    autocast: bool = True,
) -> Seconds:
    """Return seconds of each row of the table, all its calls together, (rows,). ``channels_last``: order of images.

    Under a recipe the products of layers read quantised operands and write bf16. Convolutions, attention, the logits and all
    else run in bf16. Separate kernels cast the input, the weight and the gradient of a layer (as Transformer Engine's
    ``Linear`` does). Each cast serves two of the three products.
    """
    efficiency = on_device(efficiency, device)
    recipe = RECIPES.get(precision)
    if recipe is None:
        return _uniform(table, micro_batch_size, precision, device, efficiency, channels_last, autocast)
    device.peak(precision)
    wide, narrow = (_uniform(table, micro_batch_size, p, device, efficiency, channels_last) for p in (WIDE, precision))
    casts = cast_seconds(table, micro_batch_size, recipe, device, efficiency, weight_casts)
    return Seconds(
        np.where(table.narrow, narrow.flops, wide.flops),
        np.where(table.narrow, narrow.bytes + casts, wide.bytes),
        np.where(table.narrow, narrow.launch, wide.launch),
    )


def cast_seconds(
    table: OperationTable,
    micro_batch_size: float,
    recipe: QuantisationRecipe,
    device: Device,
    e: Efficiency,
    weight_casts: float = 1.0,
) -> Array:
    """Return half the seconds of casts of each row's operands, (rows,). A cast serves two products, which share its time.

    An operand that is multiplied by a weight grows along ``m``. The gradient of a weight is summed along ``k`` and has no cast.
    In tuned software queries, keys and values are one layer, as are a gate and the expansion: they share their input's cast.
    """
    m, n, k, batch = (table.sizes * np.where(table.grows > 0, micro_batch_size, 1.0)).T
    weighs = (table.grows[:, 0] > 0) | ~table.grows.any(axis=1)
    shared = table.shares & (e.level == "tuned")
    left, right = np.where(weighs & shared, 0.0, 1.0), np.where(weighs | shared, 0.0, 1.0)
    elements = batch * (left * m * k + right * k * n), np.where(weighs, weight_casts * batch * k * n, 0.0)
    launched = left + right, np.where(weighs, weight_casts, 0.0)
    seconds = np.zeros(len(table.calls))
    for count, kernels, weight in zip(elements, launched, (False, True), strict=True):
        moved = count * recipe.cast_bytes(device.architecture, weight=weight) / memory_rate(device, e)
        least = kernels * recipe.kernels(weight=weight) * e.launch_s[device.kind]
        seconds = seconds + (moved + least) / 2
    return table.calls * seconds


def _uniform(
    table: OperationTable,
    micro_batch_size: float,
    precision: str,
    device: Device,
    efficiency: Efficiency,
    channels_last: bool,
    autocast: bool = True,
) -> Seconds:
    """Return seconds of each row, (rows,), with every kind of operation at ``precision``."""
    e, recipe = efficiency, RECIPES.get(precision)
    matrix = on_matrix_units(device, precision)
    rate = peak_rate(device, precision, e)
    units = device.units.value if device.units else e.units
    m, n, k, batch = (table.sizes * np.where(table.grows > 0, micro_batch_size, 1.0)).T
    # fused attention keeps its tile of scores and loops over the keys: the width of a head does not fill its pipeline
    fill = e.matrix_depth * operand_demand(device, precision) * (2 / recipe.width if recipe else 1) if matrix else e.depth
    depth = np.where(table.kind == ATTENTION, 0.0, fill)
    issued = device.issued.value / device.lanes.value if device.issued and device.lanes and not matrix else math.inf
    measured = has_curve(device, precision)
    shaped = np.flatnonzero((table.kind != MEMORY) & ~(measured & (table.kind == MATMUL)))
    shape, rest = np.ones(len(table.kind)), (units, depth[shaped], e.small_tile, issued, e.issue_overhead)
    if device.array is not None and matrix:
        shape[shaped] = systolic_efficiency(table.kind, m, n, k, device.array.value)[shaped]
    else:
        shape[shaped] = shape_efficiency(m[shaped], n[shaped], k[shaped], batch[shaped], *rest)
    winograd = 1.0 if matrix else winograd_gain(table, rate * e.conv_share, memory_rate(device, e), e.winograd)
    fed = operand_demand(device, precision) ** -e.feeding
    attention = e.attention_share * fed * attention_kernels.share(device, precision, e)
    of_kind = (
        np.minimum([e.matrix_share * fed, e.matrix_conv_share * fed, attention, 1.0, e.matrix_share * fed * SCAN_SHARE], 1.0)
        if matrix
        else np.array([e.vector_share, e.conv_share, e.vector_share, 1.0, e.vector_share * SCAN_SHARE])
    )
    work = table.flops * micro_batch_size * computed_share(table)
    narrow = _head_share(table, device) if matrix else 1.0
    busy = np.maximum(rate * shape * of_kind[table.kind] * winograd * narrow, 1e-30)
    scale: float | Array = BYTES_PER_ELEMENT[precision] / _COUNTED
    if recipe:  # narrow operands, a wide result
        read, written = m * k + k * n, m * n
        narrower = recipe.operand / BYTES_PER_ELEMENT[precision]
        scale = scale * (read * narrower + written) / np.maximum(read + written, 1.0)
    moved = (table.bytes * micro_batch_size + table.fixed_bytes) * scale
    moved = moved * np.where(table.kind == MEMORY, e.kept_share, 1.0)
    flops, streamed = work / busy, moved / memory_rate(device, e) / np.where(table.kind == SCAN, SCAN_SHARE, 1.0)
    if device.cycles is not None:
        accesses = (table.bytes * micro_batch_size + table.fixed_bytes) / _COUNTED * e.kept_share
        streamed = np.where(table.kind == MEMORY, np.maximum(streamed, accesses / (device.cycles * e.element_rate)), streamed)
    if device.vector_rate is not None:
        turned = turned_elements(table, m, n, k, batch)
        fetched = product_results(table.kind, work, k) + turned
        flops = flops + fetched / device.vector_rate.value + turned * (2 * device.array.value / rate if device.array else 0.0)
        accesses = (table.bytes * micro_batch_size + table.fixed_bytes) / _COUNTED
        streamed = np.where(table.kind == MEMORY, np.maximum(streamed, accesses / device.vector_rate.value), streamed)
    calls = table.calls * np.where(table.kind == MEMORY, e.kept_calls, 1.0)
    launch = calls * e.launch_s[device.kind]
    casts = 0.0 if BYTES_PER_ELEMENT[precision] == _COUNTED or not autocast else CAST_SHARE
    streamed, launch = (
        np.where(table.autocast, casts * streamed, streamed),
        np.where(table.autocast & (casts == 0), 0.0, launch),
    )
    if e.level == "tuned":
        streamed, launch = np.where(table.eager, 0.0, streamed), np.where(table.eager, 0.0, launch)
    if measured:
        products, seconds, bound = _products(table, micro_batch_size, curve_of(device, precision, e), e.level == "tuned")
        flops[products] = np.where(bound, seconds, 0.0) / e.matrix_share
        streamed[products] = np.where(bound, 0.0, seconds) / e.matrix_share
    orders = {"matrix": matrix, "narrow": BYTES_PER_ELEMENT[precision] < _COUNTED, "channels_last": channels_last}
    kernels = convolution_seconds(table, work, flops, streamed, device, e, **orders)
    computing = kernels.flops >= kernels.streamed
    moving = np.where(computing, 0.0, kernels.streamed) + kernels.copied
    return Seconds(np.where(computing, kernels.flops, 0.0), moving, launch)


@lru_cache(maxsize=256)
def _products(table: OperationTable, micro_batch_size: float, curve: ProductCurve, joined: bool) -> tuple[Ints, Array, Bools]:
    """Return the rows of matrix products, their seconds on the curve, and whether computing takes most of each.

    Args:
        joined: whether products of one input are computed as one, of which each has its part.
    """
    rows = np.flatnonzero((table.kind == MATMUL) & (table.flops * micro_batch_size > 0)).astype(np.int64)
    sizes = table.joined if joined else table.sizes
    m, n, k, batch = (sizes[rows] * np.where(table.grows[rows] > 0, micro_batch_size, 1.0)).T
    seconds, computing = product_seconds(curve, m, n, k, batch, ragged=table.ragged[rows])
    return rows, seconds * table.flops[rows] * micro_batch_size / (2 * m * n * k * batch), computing


def curve_of(device: Device, precision: str, efficiency: Efficiency) -> ProductCurve:
    """Return the curve of a device's products. The power limits a board whose products were not measured."""
    return product_curve(device, precision, efficiency.matrix_joules)


def _head_share(table: OperationTable, device: Device) -> Array:
    """Return the rate of attention relative to that with heads of the usual width, (rows,); 1 for all else."""
    share, backward = np.ones(len(table.kind)), np.zeros(len(table.kind), dtype=np.bool_)
    backward[table.row] = table.backward
    rows = np.flatnonzero(table.kind == ATTENTION)
    if len(rows):
        share[rows] = attention_kernels.width_share(device, table.sizes[rows, 2], backward[rows])
    return share


def computed_share(table: OperationTable) -> Array:
    """Return the kernel's FLOPs relative to the table's, (rows,).

    Causal attention computes the blocks up to the diagonal's (Dao 2023, FlashAttention-2, arXiv:2307.08691, section 3.1). If
    each query sees w of n keys, the FLOPs are those of w keys. The first w queries see fewer. The kernel computes half a block
    too much at the diagonal. A window has another edge, and its rows are so short that starting them counts (``WINDOW_EDGE``).
    """
    keys = np.maximum(table.sizes[:, 1], 1.0)
    seen = np.where(table.sliding > 0, table.sliding, keys)
    edges = CAUSAL_BLOCK / 2 + (1 - seen / keys) * (2 * WINDOW_EDGE - CAUSAL_BLOCK / 2)
    return np.where(table.causal > 0, np.minimum(1 - seen / (2 * keys) + edges / seen, keys / seen), 1.0)


def optimizer_seconds(
    optimizer: Optimizer,
    num_parameters: int,
    num_tensors: int,
    device: Device,
    efficiency: Efficiency,
    update: WeightUpdate = PLAIN_UPDATE,
) -> tuple[float, float]:
    """Return seconds of one update: memory traffic, and kernel launches. Tuned software fuses them unless ``update`` says
    otherwise."""
    memory = update.moved_bytes(optimizer, efficiency.framework) * num_parameters / memory_rate(device, efficiency)
    launch = update.kernels(optimizer, num_tensors, efficiency.framework, FUSED) * efficiency.launch_s[device.kind]
    factor = efficiency.factor_on(device.board)
    return memory * factor, launch * factor


def ema_seconds(
    num_parameters: int, num_tensors: int, device: Device, efficiency: Efficiency, update: WeightUpdate
) -> tuple[float, float]:
    """Return seconds of a step of the weights' moving average: memory traffic, and kernel launches; zeros without one."""
    moved, kernels = update.ema_cost(num_tensors, efficiency.level, FUSED)
    factor = efficiency.factor_on(device.board)
    launch = kernels * efficiency.launch_s[device.kind]
    return factor * moved * num_parameters / memory_rate(device, efficiency), factor * launch
