"""Layers from their dimensions, with the operations that ``trace`` finds in the module of the same name.

Bytes are those of eager PyTorch at fp32: every kernel reads its inputs and writes its outputs once. Sizes are per sample;
``rows`` is its number of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.workload.layers import Grows, Layer, Operation, OperationKind, Parameter

WORD, HALF, INDEX, MASK = 4.0, 2.0, 8.0, 1.0  # bytes of an fp32 number, a 16-bit one, a token, an element of a dropout mask
Operations = tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """A layer and its parameters, before it has an index.

    ``kept``: bytes saved for the backward pass at fp32, ``kept_half`` under 16-bit autocast. ``weights``: names and shapes, in
    the order in which gradients become ready.
    """

    name: str
    kind: str
    operations: Operations
    kept: float = 0.0
    weights: tuple[tuple[str, tuple[int, ...]], ...] = ()
    kept_half: float = 0.0

    def named(self, prefix: str) -> LayerSpec:
        """Return the same layer inside another module."""
        return replace(self, name=prefix + self.name)


def lay_out(parts: list[LayerSpec]) -> tuple[tuple[Layer, ...], tuple[Parameter, ...]]:
    """Return layers in forward order; gradients become ready from the last to the first."""
    layers = tuple(
        Layer(name=p.name, kind=p.kind, operations=p.operations, activation_bytes=p.kept, activation_bytes_half=p.kept_half)
        for p in parts
    )
    order = [(i, name) for i in reversed(range(len(parts))) for name, _ in parts[i].weights]
    ready = {key: number for number, key in enumerate(order)}
    parameters = (
        Parameter(name=f"{part.name}.{name}", shape=shape, layer=i, ready=ready[i, name])
        for i, part in enumerate(parts)
        for name, shape in sorted(part.weights, key=lambda weight: weight[0] != "weight")
    )
    return layers, tuple(parameters)


def memory(backward: bool, calls: int, moved: float, fixed: float = 0.0) -> Operation:
    """Return memory-bound kernels."""
    return Operation(kind="memory", backward=backward, calls=calls, bytes=moved, fixed_bytes=fixed)


def elementwise(
    name: str,
    kind: str,
    forward: tuple[int, float],
    backward: tuple[int, float],
    kept: float = 0.0,
    *,
    kept_half: float | None = None,
    fixed: float = 0.0,
) -> LayerSpec:
    """Return element-wise kernels: calls and bytes of each pass. The forward pass also reads ``fixed`` bytes.

    Args:
        kept_half: None means half of ``kept``, as for tensors with 16 bits under autocast.
    """
    forth = (memory(False, *forward, fixed),) if forward[0] else ()
    back = (memory(True, *backward),) if backward[0] else ()
    return LayerSpec(name, kind, forth + back, kept, kept_half=kept / 2 if kept_half is None else kept_half)


def product(
    m: float, n: float, k: float, batch: float, moved: float, backward: bool, calls: int = 1, kind: OperationKind = "matmul"
) -> Operation:
    """Return ``batch`` products of (m, k) by (k, n) for each sample."""
    flops = 2.0 * m * n * k * batch * calls
    return Operation(
        kind=kind,
        backward=backward,
        calls=calls,
        flops=flops,
        bytes=moved * calls,
        m=m,
        n=n,
        k=k,
        batch=batch,
        grows="batch",
    )


def _multiply(backward: bool, m: float, n: float, k: float, grows: Grows, fixed: float, words: float) -> Operation:
    return Operation(
        kind="matmul",
        backward=backward,
        calls=1,
        flops=2.0 * m * n * k,
        bytes=WORD * words,
        fixed_bytes=fixed,
        m=m,
        n=n,
        k=k,
        batch=1.0,
        grows=grows,
    )


def linear(
    name: str,
    rows: float,
    inputs: int,
    outputs: int,
    *,
    bias: bool = True,
    kept: bool = True,
    kept_half: bool | None = None,
    sums: int = 0,
) -> LayerSpec:
    """Return a linear layer over ``rows`` tokens.

    Args:
        kept: whether it is the first layer to save its input for the backward pass.
        kept_half: the same under autocast, where each layer saves its own copy of an fp32 input. None: as ``kept``.
        sums: number of gradients that are added to that of its input, one kernel each.
    """
    weight, biases = WORD * inputs * outputs, WORD * outputs if bias else 0.0
    operations = [
        _multiply(False, rows, outputs, inputs, "m", weight + biases, rows * (inputs + outputs)),
        _multiply(True, rows, inputs, outputs, "m", weight, rows * (inputs + outputs)),
        _multiply(True, outputs, inputs, rows, "k", weight, rows * (inputs + outputs)),
    ]
    if bias or sums:
        summed = 3 * WORD * rows * inputs * sums + (WORD * rows * outputs if bias else 0.0)
        operations.append(memory(True, sums + int(bias), summed, biases))
    weights = (("bias", (outputs,)),) if bias else ()
    held = WORD * rows * inputs if kept else 0.0
    half = HALF * rows * inputs if (kept if kept_half is None else kept_half) else 0.0
    return LayerSpec(name, "Linear", tuple(operations), held, (*weights, ("weight", (outputs, inputs))), half)


def grouped(
    name: str, count: float, rows: float, inputs: int, outputs: int, *, bias: bool = True, kept: bool = True, sums: int = 0
) -> LayerSpec:
    """Return ``count`` linear layers of one size over ``rows`` tokens each, as a grouped product. Others as ``linear``."""
    single = linear("", rows, inputs, outputs, bias=bias, kept=kept, kept_half=True, sums=sums)
    operations = tuple(
        replace(
            o,
            flops=o.flops * count,
            bytes=o.bytes * count,
            fixed_bytes=o.fixed_bytes * count,
            batch=float(count) if o.kind == "matmul" else o.batch,
        )
        for o in single.operations
    )
    weights = tuple((weight, (int(count), *shape)) for weight, shape in single.weights)
    return LayerSpec(name, single.kind, operations, single.kept * count, weights, single.kept_half * count)


def normalisation(name: str, rows: float, width: int, *, rms: bool = False, kept: bool = True, sums: int = 0) -> LayerSpec:
    """Return LayerNorm, or RMSNorm with one fused kernel. ``kept`` and ``sums`` as for ``linear``. Autocast keeps fp32."""
    x, tensors = WORD * rows * width, 1 if rms else 2
    statistics = tensors * WORD * rows
    operations = (
        memory(False, 1, 2 * x + statistics, tensors * WORD * width),
        memory(True, 1 + sums, 3 * x * (1 + sums) + statistics, 2 * tensors * WORD * width),
    )
    weights = (("weight", (width,)),) if rms else (("weight", (width,)), ("bias", (width,)))
    held = (x if kept else 0.0) + statistics
    return LayerSpec(name, "RMSNorm" if rms else "LayerNorm", operations, held, weights, held)


def embedding(name: str, rows: float, entries: int, width: int, *, tied: bool = False) -> LayerSpec:
    """Return a look-up of rows of a table. The gradient is dense. A tied table's gradient is added to the output layer's."""
    x, table = WORD * rows * width, WORD * entries * width
    operations = (
        memory(False, 1, INDEX * rows + 2 * x),
        memory(True, 1 + tied, INDEX * rows + x, table * (4 if tied else 1)),
    )
    return LayerSpec(name, "Embedding", operations, INDEX * rows, (("weight", (entries, width)),), INDEX * rows)


def positions(name: str, rows: float, entries: int, width: int) -> LayerSpec:
    """Return learned position embeddings, equal for all samples, and their addition."""
    x = WORD * rows * width
    operations = (
        memory(False, 2, 2 * x, INDEX * rows + 3 * x),
        memory(True, 2, x, INDEX * rows + 2 * x + WORD * entries * width),
    )
    return LayerSpec(name, "Embedding", operations, 0.0, (("weight", (entries, width)),))


def dropout(name: str, numbers: float, calls: int = 1) -> LayerSpec:
    """Return dropout of ``numbers`` elements, ``calls`` times."""
    moved = calls * numbers * (2 * WORD + MASK)
    masks = calls * numbers * MASK
    return elementwise(name, "Dropout", (calls, moved), (calls, moved), masks, kept_half=masks)


def cross_entropy(name: str, rows: float, classes: int) -> LayerSpec:
    """Return the cross entropy of logits (rows, classes) with one class for each row. Autocast computes it at fp32."""
    logits, classes_of = WORD * rows * classes, INDEX * rows
    kept = logits + classes_of
    return elementwise(name, "loss", (2, 2 * logits + classes_of), (3, 5 * logits + classes_of), kept, kept_half=kept)
