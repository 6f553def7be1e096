"""One device's part of a network whose layers are divided in a tensor-parallel group, and the group's exchanges.

Attention is divided by heads, the feed-forward network by its inner width, embedding and logits by the vocabulary. The first
product of such a region is divided by columns, its last by rows. An all-reduce completes the sums (Shoeybi et al. 2019,
Megatron-LM, arXiv:1909.08053, section 3). With sequence parallelism the layers between the regions are divided by tokens, and
each all-reduce becomes a reduce-scatter and an all-gather (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from paceline.errors import UserError
from paceline.prediction.passes.layer_roles import Style, forward_product, is_expert, style
from paceline.workload.layers import Layer, Operation, Parameter
from paceline.workload.prepared import once
from paceline.workload.table import Workload

CollectiveKind = Literal["allreduce", "gather", "scatter", "alltoall"]
GroupName = Literal["tensor", "context", "expert", "expert_tensor"]
_FP32 = 4.0
WGRAD_SHARE = 0.5
"""Share of a product's backward pass that computes the gradient of its weight. Collectives may overlap it."""
LOSS_EXCHANGES = 3
"""Numbers of each token that a loss over a divided vocabulary all-reduces: the largest logit, the target's, the sum of the
exponentials (Megatron-LM, ``vocab_parallel_cross_entropy``)."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One exchange of the group in a pass of a layer.

    Attributes:
        layer: index of the layer that waits for it. ``backward``: whether in its backward pass.
        bytes: bytes of the whole buffer, at fp32, for one sample.
        beside: share of the layer's kernels in that pass that may overlap the exchange.
        wide: whether it is in fp32 at any precision. ``operand``: True if it is an operand of a product, which a recipe
            quantises before the exchange. ``separate``: whether no product is cut into pieces that overlap it.
        group: the group of the mesh that exchanges.
        copies: for an all-to-all, the number of members that each number goes to. ``within``: share of the members that they
            are chosen from.
    """

    layer: int
    backward: bool
    kind: CollectiveKind
    bytes: float
    beside: float = 0.0
    wide: bool = False
    operand: bool = False
    separate: bool = False
    group: GroupName = "tensor"
    copies: float = 1.0
    within: float = 1.0


@dataclass(frozen=True, slots=True)
class Share:
    """One device's part of every layer and parameter, and the collectives of its group."""

    workload: Workload
    collectives: tuple[Collective, ...]


@once
def share(workload: Workload, tensor: int, sequence: bool) -> Share:
    """Return one device's share of ``workload``, cached for equal arguments as long as the workload lives.

    Args:
        tensor: devices of the group, at least 2.
        sequence: whether the layers between the regions are divided by tokens.

    Raises:
        UserError: no layer's name tells how it is divided; heads or widths that do not divide among the devices.
    """
    styles = [style(layer) for layer in workload.layers]
    if "rows" not in styles:
        raise UserError(
            f"tensor parallelism of {tensor}: no layer of {workload.name} has a name that says how it is divided",
            "give tensor=1, or name the layers as Llama or GPT-2 do",
        )
    if not sequence and any(is_expert(layer.name) for layer in workload.layers):
        raise UserError(
            f"tensor parallelism of {tensor} without sequence parallelism: its devices would send the same tokens to the "
            f"experts of {workload.name}",
            "give sequence (--sequence)",
        )
    of_layer = _parameters_by_layer(workload)
    layers = [
        _divided(layer, how, tensor, sequence, of_layer[index])
        for index, (layer, how) in enumerate(zip(workload.layers, styles, strict=True))
    ]
    parameters = [divided_parameter(p, styles[p.layer], tensor) for p in workload.parameters]
    own = replace(
        workload,
        layers=tuple(layers),
        parameters=tuple(parameters),
        frozen=ceil(workload.frozen / tensor),
        unpacked=ceil(workload.unpacked / tensor),
    )
    collectives = (*_collectives(workload.layers, styles, sequence), *_of_adapters(workload, styles, sequence))
    return Share(own, tuple(sorted(collectives, key=lambda c: c.layer)))


def _parameters_by_layer(workload: Workload) -> list[list[Parameter]]:
    own: list[list[Parameter]] = [[] for _ in workload.layers]
    for parameter in workload.parameters:
        own[parameter.layer].append(parameter)
    return own


def _divided(layer: Layer, how: Style, t: int, sequence: bool, parameters: Sequence[Parameter]) -> Layer:
    if how in ("columns", "rows"):
        forward = forward_product(layer)
        if forward is None:
            return layer
        size = forward.n if how == "columns" else forward.k
        if size < t:
            raise UserError(f"{layer.name} of width {size:g} does not divide among {t} devices", "give a smaller tensor")
        biased = any(parameter.name.endswith("bias") for parameter in parameters)
        operations = tuple(divided_product(o, forward, how, t, biased) for o in layer.operations)
        adapted = any(parameter.name.endswith(".down.weight") for parameter in parameters)
        whole = how == "columns" and (not sequence or adapted)  # all devices have the same input; adapters keep it gathered
        return layer.divided(operations, 1 if whole else t)
    if how == "inside":
        heads = [o.batch for o in layer.operations if o.batch > 1]
        if heads and heads[0] % t:
            raise UserError(
                f"the {heads[0]:g} heads of {layer.name} do not divide among {t} devices", "give a divisor of the heads"
            )
    if how == "entries":  # each device looks up its own entries, and has a row for every token
        operations = tuple(replace(o, fixed_bytes=o.fixed_bytes / t) for o in layer.operations)
        return replace(layer, operations=operations)
    parts = 1 if how == "tokens" and not sequence else t
    by = fewer_tokens if how == "tokens" else _divided_work
    return layer.divided(tuple(by(o, parts) for o in layer.operations), parts)


def fewer_tokens(o: Operation, parts: float) -> Operation:
    """Return an equal part of the tokens: rows of a product, depth of a weight's gradient, queries of attention."""
    deep = o.grows == "k"
    return replace(
        o, flops=o.flops / parts, bytes=o.bytes / parts, m=o.m if deep else o.m / parts, k=o.k / parts if deep else o.k
    )


def _divided_work(o: Operation, parts: int) -> Operation:
    """Return an equal part of the work: heads of a product, bytes and FLOPs of others. Fixed bytes, of weights, stay whole."""
    batch = o.batch / parts if o.batch > 1 else o.batch
    return replace(o, flops=o.flops / parts, bytes=o.bytes / parts, batch=batch)


def divided_product(o: Operation, forward: Operation, how: Style, t: int, biased: bool) -> Operation:
    """Return one product of a linear layer whose outputs (``columns``) or inputs (``rows``) are divided."""
    rows, inputs, outputs = forward.m, forward.k, forward.n
    if o.kind == "memory" and not o.bytes:  # of the weight alone: to unpack it, or its norm
        return replace(o, fixed_bytes=o.fixed_bytes / t)
    if o.kind != "matmul":  # sums of the input's gradients, and the bias's
        bias = min(o.bytes, _FP32 * rows * outputs) if biased else 0.0
        sums = o.bytes - bias
        divided = bias / t + sums if how == "columns" else bias + sums / t
        return replace(o, bytes=divided, fixed_bytes=o.fixed_bytes / (t if how == "columns" else 1))
    m, n, k = o.m, o.n, o.k
    side = outputs if how == "columns" else inputs
    if o.grows == "m":  # (tokens, k) by (k, n): the side is the depth, or what comes out
        k, n = (k / t, n) if (how == "rows") != o.backward else (k, n / t)
    elif m == side and (how == "columns" or n != side):  # the weight's gradient has both sides
        m /= t
    else:
        n /= t
    growing, fixed = (m * k + m * n, k * n) if o.grows == "m" else (m * k + k * n, m * n)
    before = (o.m * o.k + o.m * o.n, o.k * o.n) if o.grows == "m" else (o.m * o.k + o.k * o.n, o.m * o.n)
    return replace(
        o,
        m=m,
        n=n,
        k=k,
        flops=o.flops / t,
        bytes=o.bytes * growing / before[0],
        fixed_bytes=o.fixed_bytes * fixed / before[1],
    )


def divided_parameter(p: Parameter, how: Style, t: int) -> Parameter:
    """Return one device's part of a parameter of a divided layer."""
    bias = p.name.endswith("bias") and len(p.shape) == 1
    if how in ("columns", "entries"):
        return replace(p, shape=(ceil(p.shape[0] / t), *p.shape[1:]))
    if how == "rows" and not bias:
        return replace(p, shape=(*p.shape[:-1], ceil(p.shape[-1] / t)))
    return p


def _collectives(layers: Sequence[Layer], styles: Sequence[Style], sequence: bool) -> Iterator[Collective]:
    entered = 0.0  # input width of a product's region, after its first product and before its last
    for index, (layer, how) in enumerate(zip(layers, styles, strict=True)):
        product = forward_product(layer)
        if how == "columns" and product is not None:
            if product.k != entered:  # latent attention enters with two vectors
                size = _FP32 * product.m * product.k
                if sequence:
                    narrow = not layer.is_logits
                    yield Collective(index, False, "gather", size, operand=narrow)
                    yield Collective(index, True, "gather", size, beside=WGRAD_SHARE, operand=narrow)  # the input once more
                    yield Collective(index, True, "scatter", size, beside=WGRAD_SHARE)
                else:
                    yield Collective(index, True, "allreduce", size, beside=WGRAD_SHARE)
            entered = 0.0 if layer.is_logits else product.k
        elif how == "rows" and product is not None:
            yield from _sum_exchange(index, _FP32 * product.m * product.n, sequence, operand=True)
            entered = 0.0
        elif how == "entries":
            # Rows are read and written; the numbers of the tokens, which are kept, are read too.
            moved = sum(o.bytes for o in layer.operations if not o.backward) - layer.activation_bytes
            yield from _sum_exchange(index, moved / 2, sequence)
        elif layer.name.rpartition(".")[2] == "loss":
            yield from _loss(index, layers, styles)


def _of_adapters(workload: Workload, styles: Sequence[Style], sequence: bool) -> Iterator[Collective]:
    """Yield the exchanges of adapters next to divided products (Megatron-Bridge, ``peft/utils.py``, ``ParallelLinearAdapter``).

    The first matrix is divided as the product is, and its results are gathered or added up. Next to a product that is divided
    by rows, the whole result is gathered too, and its gradient if the tokens are divided. Next to the products that a region
    enters with, the gradient of the adapters' input is added up once, apart from that of the product. Recipes of LoRA by NVIDIA
    do not overlap them (``tp_comm_overlap=False``).
    """
    ranks = {p.layer: p.shape[0] for p in workload.parameters if p.name.endswith(".down.weight") and len(p.shape) == 2}
    entered = False  # whether the region has an adapter next to the products that it enters with
    for index, (layer, how) in enumerate(zip(workload.layers, styles, strict=True)):
        product, rank = forward_product(layer), ranks.get(index, 0)
        if product is None or how not in ("columns", "rows"):
            continue
        if rank and how == "columns":
            yield Collective(index, False, "gather", _FP32 * product.m * rank, separate=True)
            if not entered:
                kind: CollectiveKind = "scatter" if sequence else "allreduce"
                yield Collective(index, True, kind, _FP32 * product.m * product.k, separate=True)
        elif rank:
            yield Collective(index, False, "allreduce", _FP32 * product.m * rank, separate=True)
            yield Collective(index, False, "gather", _FP32 * product.m * product.n, separate=True)
            yield Collective(index, True, "allreduce", _FP32 * product.m * rank, separate=True)
            if sequence:
                yield Collective(index, True, "gather", _FP32 * product.m * product.n, separate=True)
        entered = how == "columns" and (entered or rank > 0)


def _sum_exchange(index: int, size: float, sequence: bool, *, operand: bool = False) -> Iterator[Collective]:
    """Yield the exchange that completes a sum over the group after a layer. ``operand``: its products read the gradient."""
    yield Collective(index, False, "scatter" if sequence else "allreduce", size)
    if sequence:
        yield Collective(index, True, "gather", size, operand=operand)


def _loss(index: int, layers: Sequence[Layer], styles: Sequence[Style]) -> Iterator[Collective]:
    """Yield the exchange of the loss after logits of a divided vocabulary."""
    logits = next((i for i in reversed(range(index)) if layers[i].is_logits), None)
    if logits is None or styles[logits] != "columns":
        return
    product = forward_product(layers[logits])
    for _ in range(LOSS_EXCHANGES if product is not None else 0):
        yield Collective(index, False, "allreduce", _FP32 * (product.m if product else 0.0), wide=True)
