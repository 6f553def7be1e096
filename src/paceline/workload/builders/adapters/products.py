"""Adapters of one layer: their products, the kernels around them, and what they keep.

A product of (inputs, outputs) gets two small ones, (inputs, rank) and (rank, outputs): rank (inputs + outputs) trained numbers,
as in PEFT. PEFT scales the adapter's result and adds it to the product's, one kernel each, and drops some of its input if asked
(``tuners/lora/layer.py``, ``Linear.forward``). A convolution gets one with its window to ``rank`` channels and one of 1x1. An
embedding gets a table of ``rank`` columns and a product. Experts get an adapter each, which PEFT adds to their weights in every
forward pass (``ParamWrapper``): the weights get a gradient, which becomes that of the adapters.

DoRA also scales each output by a trained magnitude over the norm of its row of weights (``tuners/lora/dora.py``). The
norm takes a product of both matrices, of the size of the weight, in every forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.workload.builders.adapters.lora import LoRA
from paceline.workload.builders.adapters.packed import unpacking
from paceline.workload.builders.layer_builders import HALF, INDEX, MASK, WORD, linear, memory
from paceline.workload.layers import Layer, Operation

_NORM_KERNELS = 9
"""Kernels of a norm in DoRA: the unit matrix (2), two products, cast, scale, sum, norm, quotient."""
_MAGNITUDE_KERNELS = 7
"""Kernels that DoRA adds to each pass of a product over the tokens."""


@dataclass(frozen=True, slots=True)
class AdaptedLayer:
    """A layer with its adapter, and the adapter's trained tensors.

    ``shapes``: names and shapes, in the order in which gradients become ready.
    """

    layer: Layer
    shapes: tuple[tuple[str, tuple[int, ...]], ...]


def frozen(layer: Layer) -> Layer:
    """Return a layer whose weights get no gradient. A table of tokens needs no backward pass at all."""
    if layer.kind == "Embedding":
        forward = tuple(o for o in layer.operations if not o.backward)
        return replace(layer, operations=forward, activation_bytes=0.0, activation_bytes_half=0.0)
    operations = tuple(o for o in layer.operations if not (o.backward and o.grows == "k"))
    if layer.kind in ("Linear", "Conv1D") or layer.kind.startswith("Conv"):
        return replace(layer, operations=operations, activation_bytes=0.0, activation_bytes_half=0.0)
    return replace(layer, operations=operations)


def on_product(layer: Layer, product: Operation, lora: LoRA, shared: bool) -> AdaptedLayer:
    """Return a frozen product and its adapter, which keeps its input unless another layer does, and always what dropout leaves.

    Args:
        shared: True if an earlier adapter keeps the same input.
    """
    rank = lora.rank
    rows, inputs, outputs, times = product.m, int(product.k), int(product.n), product.calls
    down, up = linear("", rows, inputs, rank, bias=False), linear("", rows, rank, outputs, bias=False)
    added = _times((*down.operations, *up.operations), times)
    added += _around(times, rows * inputs, rows * outputs, lora)
    kept, kept_half = _kept(layer, times * rows * inputs, times * rows * rank, lora, shared)
    if lora.dora:
        added += _magnitudes(product, lora)
        results = 2 * times * rows * outputs  # of the product and of the adapter
        kept, kept_half = kept + WORD * results, kept_half + HALF * results
    made = frozen(layer)
    made = replace(made, operations=made.operations + added, activation_bytes=kept, activation_bytes_half=kept_half)
    return AdaptedLayer(made, (*_magnitude(outputs, lora), ("up.weight", (outputs, rank)), ("down.weight", (rank, inputs))))


def on_convolution(layer: Layer, product: Operation, lora: LoRA, shape: tuple[int, ...]) -> AdaptedLayer:
    """Return a frozen convolution and its adapter: one with the same window to ``rank`` channels, then one of 1x1.

    Args:
        shape: shape of the weight, (outputs, inputs of a group, window...).
    """
    rank, rows, times, groups = lora.rank, product.m, product.calls, max(1, round(product.batch))
    outputs, inputs, window = shape[0], shape[1] * groups, shape[2:]
    area = round(product.window)
    down, up = linear("", rows, inputs * area, rank, bias=False), linear("", rows, rank, outputs, bias=False)
    added = _times((*down.operations, *up.operations), times)
    forward = next((o for o in layer.operations if not o.backward and o.kind == "conv"), product)
    pixels = max(0.0, forward.bytes / WORD / max(1, times) - rows * outputs)  # numbers that the convolution reads
    added += _around(times, pixels, rows * outputs, lora)
    kept, kept_half = _kept(layer, times * pixels, times * rows * rank, lora, False)
    if lora.dora:
        added += _magnitudes(product, lora)
        results = 2 * times * rows * outputs
        kept, kept_half = kept + WORD * results, kept_half + HALF * results
    made = frozen(layer)
    made = replace(made, operations=made.operations + added, activation_bytes=kept, activation_bytes_half=kept_half)
    names = (("up.weight", (outputs, rank // groups, *(1,) * len(window))), ("down.weight", (rank, inputs, *window)))
    return AdaptedLayer(made, (*_magnitude(outputs, lora), *names))


def on_embedding(layer: Layer, lora: LoRA, entries: int, width: int, rows: float) -> AdaptedLayer:
    """Return a frozen table of tokens and its adapter: a table of ``rank`` columns, and a product.

    Args:
        rows: tokens of a sample.
    """
    rank = lora.rank
    table = WORD * entries * rank
    look_up = (
        memory(False, 1, INDEX * rows + 2 * WORD * rows * rank),
        memory(True, 1, INDEX * rows + WORD * rows * rank, table),  # a dense gradient
    )
    up = linear("", rows, rank, width, bias=False)
    added = (*look_up, *up.operations, *(o for o in _around(1, 0.0, rows * width, lora) if o.bytes))
    kept, half = INDEX * rows + WORD * rows * rank, INDEX * rows + HALF * rows * rank
    if lora.dora:
        moved = WORD * (3 * entries * width + 2 * entries * rank)
        added += (memory(False, 5, 3 * WORD * rows * width, 2 * moved), memory(True, 3, 6 * WORD * rows * width))
        kept, half = kept + 2 * WORD * rows * width, half + 2 * HALF * rows * width
    made = frozen(layer)
    made = replace(made, operations=made.operations + added, activation_bytes=kept, activation_bytes_half=half)
    return AdaptedLayer(made, (*_magnitude(width, lora), ("up.weight", (width, rank)), ("down.weight", (rank, entries))))


def on_experts(layer: Layer, product: Operation, rank: int, shares: bool) -> AdaptedLayer:
    """Return experts with an adapter each, which is added to their weights in every forward pass.

    The weights' gradients are computed as if they were trained. The adapters' gradients are products with them.

    Args:
        shares: True if the first matrix is that of the layer's neighbour: gate and up-projection are one parameter.
    """
    count, inputs, outputs = round(product.batch), int(product.k), int(product.n)
    weights = WORD * count * inputs * outputs * product.calls
    merge = (memory(False, 1, 0.0, 2 * weights), memory(True, 2, 0.0, 2 * weights))
    made = replace(layer, operations=layer.operations + merge)
    up = ("up.weight", (count, outputs, rank))
    return AdaptedLayer(made, (up,) if shares else (up, ("down.weight", (count, rank, inputs))))


def _kept(layer: Layer, reads: float, inner: float, lora: LoRA, shared: bool) -> tuple[float, float]:
    """Return the bytes that an adapter keeps at fp32 and under autocast, of ``reads`` and ``inner`` numbers."""
    if lora.dropout:
        return (WORD + MASK) * reads + WORD * inner, (HALF + MASK) * reads + HALF * inner
    half = layer.activation_bytes_half
    own = layer.activation_bytes > 0
    own_half = own if half is None else half > 0
    keeps = own or (own_half and not shared)  # with neither, what is in front keeps it, as attention its result
    return WORD * (reads * keeps + inner), HALF * (reads * own_half + inner)


def _times(operations: tuple[Operation, ...], times: int) -> tuple[Operation, ...]:
    return tuple(
        replace(o, calls=times, flops=o.flops * times, bytes=o.bytes * times, fixed_bytes=o.fixed_bytes * times)
        for o in operations
    )


def _around(times: int, inputs: float, outputs: float, lora: LoRA) -> tuple[Operation, ...]:
    """Return the kernels around an adapter's products: dropout, scale and sum, and in the backward pass the sum of the
    gradients of the input.

    Args:
        inputs, outputs: numbers that one call of the product reads and writes.
    """
    kernels = [(False, 2 * WORD * outputs), (False, 3 * WORD * outputs), (True, 2 * WORD * outputs), (True, 3 * WORD * inputs)]
    if lora.dropout:
        kernels += [(backward, (2 * WORD + MASK) * inputs) for backward in (False, True)]
    return tuple(replace(memory(backward, times, times * moved), eager=True) for backward, moved in kernels)


def _magnitude(outputs: int, lora: LoRA) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return (("magnitude", (outputs,)),) if lora.dora else ()


def _magnitudes(product: Operation, lora: LoRA) -> tuple[Operation, ...]:
    """Return what DoRA adds to a product's adapter.

    The norm: a unit matrix, its products with both matrices, scale, sum with the weight, norm. Over the tokens: two scaled
    results and their sum; backward the gradients of both results and of the magnitude from each. With dropout the product runs
    once more, since it reads other numbers. Weights in few bits are unpacked once more.
    """
    times, rows, outputs = product.calls, product.m * product.batch, product.n
    weight = WORD * product.k * product.n * product.batch * times
    unit = WORD * product.k * product.k * times
    norm = memory(False, _NORM_KERNELS * times, 0.0, 7 * weight + 2 * unit)
    results = WORD * rows * outputs * times
    added: tuple[Operation, ...] = (
        norm,
        memory(False, _MAGNITUDE_KERNELS * times, 9 * results),
        memory(True, _MAGNITUDE_KERNELS * times, 15 * results),
    )
    if lora.bits == 4:
        added += unpacking(product, lora)[:1]
    if lora.dropout:
        again = replace(product, grows="batch")  # the same weights, which are counted once
        added += (again, replace(again, backward=True, n=product.k, k=product.n))
    return added
