"""Networks whose passes run forward alone, and parts of a network that a task does not compute."""

from __future__ import annotations

from dataclasses import replace

from paceline.errors import UserError
from paceline.prediction.passes.frozen_layers import matrix_elements
from paceline.workload.layers import Layer, Operation
from paceline.workload.prepared import once
from paceline.workload.table import Workload

_DOWN = ".down.weight"
"""End of the name of an adapter's first matrix, (rank, inputs)."""


@once
def forward_only(workload: Workload, adapted: bool = True) -> Workload:
    """Return the network with its weights frozen and without backward passes. Nothing is kept.

    Args:
        adapted: False leaves adapters out, as the reference of an adapted network does.
    """
    ranks = (
        {p.layer: p.shape[len(p.shape) == 3] for p in workload.parameters if p.name.endswith(_DOWN)} if workload.frozen else {}
    )
    layers = tuple(_forward(layer, 0 if adapted else ranks.get(i, 0)) for i, layer in enumerate(workload.layers))
    frozen, bits = workload.frozen, workload.frozen_bits
    if not is_adapted(workload):
        frozen, bits = workload.num_parameters + workload.frozen, 0.0
    return replace(workload, layers=layers, parameters=(), frozen=frozen, frozen_bits=bits, unwidened=0)


def is_adapted(workload: Workload) -> bool:
    """Return whether adapters are trained next to frozen weights, so that the reference needs no copy of them."""
    return bool(workload.frozen) and any(p.name.endswith(_DOWN) for p in workload.parameters)


def _forward(layer: Layer, rank: int) -> Layer:
    """Return a layer without its backward pass, and without an adapter of this rank (0: none)."""
    forward = (o for o in layer.operations if not o.backward)
    if rank:
        forward = (o for o in forward if not (o.eager or (o.kind == "matmul" and rank in (o.k, o.n))))
    return replace(layer, operations=tuple(forward), activation_bytes=0.0, activation_bytes_half=0.0)


@once
def with_logits(workload: Workload, share: float) -> Workload:
    """Return the network that computes logits and loss of this share of the tokens alone (transformers, ``logits_to_keep``)."""
    if share == 1:
        return workload
    layers = tuple(of_tokens(x, share) if x.is_logits or x.kind == "loss" else x for x in workload.layers)
    return replace(workload, layers=layers)


def of_tokens(layer: Layer, share: float) -> Layer:
    """Return a layer, without attention to other tokens, that computes this share of its tokens."""
    half = layer.activation_bytes_half
    return replace(
        layer,
        operations=tuple(_operation(o, share) for o in layer.operations),
        activation_bytes=layer.activation_bytes * share,
        activation_bytes_half=None if half is None else half * share,
    )


def _operation(o: Operation, share: float) -> Operation:
    grown = {o.grows: getattr(o, o.grows) * share} if o.grows else {}
    return replace(o, flops=o.flops * share, bytes=o.bytes * share, **grown)


@once
def weights_read(workload: Workload) -> tuple[float, float]:
    """Return elements of all matrices of the forward pass, and those that one token is multiplied by (fewer with experts)."""
    whole = sum(map(matrix_elements, workload.layers))
    products = (o for x in workload.layers for o in x.operations if not o.backward and o.kind == "matmul" and o.grows == "m")
    return whole, min(whole, sum(o.flops for o in products) / 2 / tokens_of(workload))


@once
def cache_elements(workload: Workload) -> float:
    """Return elements of keys and values that one token adds to the cache of all layers."""
    return sum(_cached(layer) for layer in workload.layers) / 4


def _cached(layer: Layer) -> float:
    """Return the fp32 bytes of keys and values of one token of a layer (``workload.builders.attention``)."""
    for o in layer.operations:
        if o.backward or (o.kind != "attention" and layer.kind != "Attention") or o.kind == "memory":
            continue
        queries, sums, each = 4 * o.m * o.k * o.batch, 4 * o.m * o.batch, o.bytes / o.calls
        if o.kind == "attention":
            return max(0.0, o.calls * (each - sums - 2 * queries) / o.n)
        return max(0.0, 2 * o.calls * (each - queries - sums * o.n) / o.n)
    return 0.0


def tokens_of(workload: Workload) -> int:
    """Return the tokens of a sequence. Raises UserError for a network that is not one of token sequences."""
    if not workload.tokens or not any(layer.is_logits for layer in workload.layers):
        raise UserError(
            f"a sample of {workload.name} is {workload.sample}: preferences and rewards are of language models",
            "leave the task out",
        )
    return workload.tokens
