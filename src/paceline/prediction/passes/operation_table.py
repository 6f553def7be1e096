"""Operations of a workload as arrays, one row for each distinct one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.prediction.passes.layer_roles import shares_input, widenings
from paceline.workload.layers import Operation
from paceline.workload.prepared import once
from paceline.workload.table import Workload

MATMUL, CONV, ATTENTION, MEMORY, SCAN = range(5)
_KINDS = {"matmul": MATMUL, "scan": SCAN, "conv": CONV, "attention": ATTENTION, "memory": MEMORY}
_SIZES = ("m", "n", "k", "batch")


@dataclass(frozen=True, slots=True, eq=False)
class OperationTable:
    """Distinct operations of a workload as arrays.

    ``sizes`` and ``grows`` are (rows, [m, n, k, batch]); ``grows`` is 1 for a size that grows with the micro batch. ``joined``:
    sizes of the product that tuned software computes a row's in.
    ``causal``: 1 for attention that leaves out later keys. ``sliding``: most keys that a query sees, 0 for all.
    ``autocast``: whether it runs under 16-bit autocast alone. ``eager``: whether it runs in ordinary software alone.
    ``narrow``: whether a recipe of fewer than 16 bits quantises it; the logits stay wide. ``shares``: whether an earlier
    product has the same input. ``ragged``: whether ``m`` is a mean of unequal ones, as of tokens by expert. ``row``, ``layer``
    and ``backward`` are (operations,): the row, the layer and the pass of each operation of the workload.
    """

    kind: Ints
    calls: Array
    flops: Array
    bytes: Array
    fixed_bytes: Array
    sizes: Array
    grows: Array
    joined: Array
    window: Array
    causal: Array
    sliding: Array
    narrow: Bools
    shares: Bools
    autocast: Bools
    eager: Bools
    ragged: Bools
    row: Ints
    layer: Ints
    backward: Bools
    layers: int


@once
def operation_table(workload: Workload) -> OperationTable:
    """Return the operations of ``workload``, cached as long as it lives."""
    operations = [(i, o) for i, layer in enumerate(workload.layers) for o in layer.operations]
    unique: dict[tuple[Operation, bool, bool, float], int] = {}
    shares = [shares_input(layer) for layer in workload.layers]
    narrow = [is_narrow(o) and not workload.layers[i].is_logits for i, o in operations]
    reads = [not o.backward or o.grows == "k" for _, o in operations]  # not the gradient of the input
    wider = widenings(workload.layers)
    keys = [
        (o, small, small and read and shares[i], wider[i] if o.kind == "matmul" else 1.0)
        for (i, o), small, read in zip(operations, narrow, reads, strict=True)
    ]
    row = np.array([unique.setdefault(key, len(unique)) for key in keys], dtype=np.int64)

    def column(name: str) -> Array:
        return np.array([getattr(o, name) for o, *_ in unique], dtype=np.float64)

    return OperationTable(
        kind=np.array([_KINDS[o.kind] for o, *_ in unique], dtype=np.int64),
        **{name: column(name) for name in ("calls", "flops", "bytes", "fixed_bytes", "window", "causal", "sliding")},
        sizes=np.stack([column(name) for name in _SIZES], axis=1),
        joined=np.array([_joined(o, more) for o, *_, more in unique]).reshape(-1, 4),
        grows=np.array([[float(o.grows == name) for name in _SIZES] for o, *_ in unique]).reshape(-1, 4),
        narrow=np.array([small for _, small, *_ in unique], dtype=np.bool_),
        shares=np.array([shared for *_, shared, _ in unique], dtype=np.bool_),
        autocast=np.array([o.autocast for o, *_ in unique], dtype=np.bool_),
        eager=np.array([o.eager for o, *_ in unique], dtype=np.bool_),
        ragged=np.array([o.batch > 1 and o.fixed_bytes > 0 and o.grows == "m" for o, *_ in unique], dtype=np.bool_),
        row=row,
        layer=np.array([i for i, _ in operations], dtype=np.int64),
        backward=np.array([o.backward for _, o in operations], dtype=np.bool_),
        layers=len(workload.layers),
    )


def _joined(o: Operation, wider: float) -> tuple[float, ...]:
    """Return the sizes of a product whose layer has ``wider`` times the outputs."""
    outputs = "m" if o.grows == "k" else "k" if o.backward else "n"
    return tuple(getattr(o, name) * (wider if name == outputs else 1.0) for name in _SIZES)


def is_narrow(o: Operation) -> bool:
    """Return whether an operation is a product of a layer with its weight, which recipes quantise.

    Products of attention are batches. Products of experts are batches with one weight each.
    """
    grouped = o.fixed_bytes > 0 and o.grows in ("m", "k")
    return o.kind == "matmul" and (o.batch == 1 or grouped) and o.grows != "batch"
