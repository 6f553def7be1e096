"""A network with frozen weights and adapters, from its layer table.

Frozen weights get no gradient, so their inputs are not kept for one. Gradients still pass through every product to the layers
in front of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from paceline.errors import UserError
from paceline.workload.builders.adapters.lora import WIDE_BITS, LoRA
from paceline.workload.builders.adapters.packed import is_packed, packed_weights, with_unpacking, with_wide_weights
from paceline.workload.builders.adapters.products import (
    AdaptedLayer,
    frozen,
    on_convolution,
    on_embedding,
    on_experts,
    on_product,
)
from paceline.workload.builders.adapters.targets import (
    chosen_layers,
    convolution_of,
    doubles_rank,
    experts_of,
    is_tokens,
    product_of,
    saved_layers,
)
from paceline.workload.builders.layer_builders import INDEX, WORD
from paceline.workload.layers import Layer, LayerTable, Parameter

Table = TypeVar("Table", bound=LayerTable)


def with_adapters(table: Table, lora: LoRA, name: str = "") -> Table:
    """Return the network with all weights frozen and adapters at the targets.

    Args:
        name: name of the result; empty means the name of the table, with the rank.

    Raises:
        UserError: a target that no layer has, or a network with divided embedding tables.
    """
    if table.tables:
        raise UserError(f"LoRA with the embedding tables of {table.name}", "leave --lora out")
    whole = saved_layers(table, lora)
    chosen = chosen_layers(table, lora) - whole
    shapes = {p.layer: p.shape for p in table.parameters if len(p.shape) > 1}
    adapters: dict[int, AdaptedLayer] = {}
    layers: list[Layer] = []
    shared = False  # whether an adapter keeps what the products since the last one that kept its input read
    for index, layer in enumerate(table.layers):
        plain = product_of(layer)
        product = plain or experts_of(layer)
        if index in whole:
            layers.append(layer)
            continue
        shared = shared and (plain is None or layer.activation_bytes == 0)
        if index in chosen:
            adapters[index] = _adapter(table, index, lora, shapes.get(index, ()), shared, chosen)
        made = adapters[index].layer if index in adapters else frozen(layer)
        if product is not None and is_packed(layer, lora):
            made = with_unpacking(made, layer, product, lora)
        elif product is not None and layer.is_logits:
            made = with_wide_weights(made, product, lora)
        layers.append(made)
        shared = shared or (plain is not None and index in chosen)
    packed = packed_weights(table, lora)
    trained = _parameters(table, adapters, shapes, [p for p in table.parameters if p.layer in whole])
    own = sum(p.size for p in table.parameters if p.layer in whole)
    return replace(
        table,
        name=name or f"{table.name}-lora-r{lora.rank}",
        layers=tuple(layers),
        parameters=trained,
        frozen=table.frozen + table.num_parameters,
        unwidened=own if lora.others == WIDE_BITS else 0,
        frozen_bits=packed.bits,
        scale_bits=packed.scale_bits,
        packed_bits=lora.bits,
        unpacked=packed.largest,
        source=f"{table.source}; {lora.kind} {lora.text}",
    )


def _adapter(
    table: LayerTable, index: int, lora: LoRA, shape: tuple[int, ...], shared: bool, chosen: frozenset[int]
) -> AdaptedLayer:
    """Return a chosen layer with its adapter."""
    layer = table.layers[index]
    if is_tokens(layer):
        entries, width = shape or (0, 0)
        return on_embedding(layer, lora, entries, width, _rows(layer, width))
    convolution = convolution_of(layer)
    if convolution is not None:
        groups = round(convolution.batch)
        if lora.rank % groups:
            raise UserError(
                f"adapters of rank {lora.rank} next to {layer.name}, a convolution of {groups} groups",
                f"give a rank that {groups} divides, or other targets",
            )
        return on_convolution(layer, convolution, lora, shape)
    experts = experts_of(layer)
    if experts is not None:
        _check_experts(layer, lora)
        pair = _pair(table, index)
        both = pair in chosen
        rank = lora.rank * (2 if both and doubles_rank(layer, lora) else 1)
        return on_experts(layer, experts, rank, both and layer.name.endswith(".gate"))
    product = product_of(layer)
    assert product is not None
    return on_product(layer, product, lora, shared)


def _check_experts(layer: Layer, lora: LoRA) -> None:
    """Raise UserError for options that PEFT refuses for the parameters of experts (``ParamWrapper``)."""
    for name, given in (("dropout", lora.dropout), ("dora", lora.dora)):
        if given:
            raise UserError(f"adapters of experts with {name}, which PEFT does not have", f"leave {name} out, or other targets")
    if lora.bits:
        raise UserError(
            f"adapters of experts of {lora.bits} bits: PEFT adds them to weights of 16 bits ({layer.name})",
            "leave bits out, or give targets=attention",
        )


def _pair(table: LayerTable, index: int) -> int:
    """Return the index of the up-projection of a gate of experts, or of the gate of an up-projection; -1 without one."""
    head, _, last = table.layers[index].name.rpartition(".")
    other = {"gate": "expand", "expand": "gate"}.get(last)
    near = range(max(0, index - 4), min(len(table.layers), index + 5))
    return next((i for i in near if table.layers[i].name == f"{head}.{other}"), -1)


def _rows(layer: Layer, width: int) -> float:
    """Return the tokens of a sample that a table of tokens looks up."""
    moved = sum(o.bytes for o in layer.operations if not o.backward)
    return moved / (INDEX + 2 * WORD * width) if width else 0.0


def _parameters(
    table: LayerTable, adapters: Mapping[int, AdaptedLayer], shapes: Mapping[int, tuple[int, ...]], whole: list[Parameter]
) -> tuple[Parameter, ...]:
    """Return the adapters' tensors of each layer with unshared weights, and the ``whole`` ones, in the order of the layers.

    Gradients are complete in the reverse order, the second matrix first. An output layer that shares the weights of the
    embedding has its own adapter.
    """
    made: list[tuple[str, tuple[int, ...], int]] = [(p.name, p.shape, p.layer) for p in whole]
    for index, adapter in sorted(adapters.items()):
        layer = table.layers[index]
        if index in shapes or layer.is_logits:
            made += [(f"{layer.name}.{name}", shape, index) for name, shape in adapter.shapes]
    made.sort(key=lambda entry: entry[2])
    order = sorted(range(len(made)), key=lambda i: (-made[i][2], i))
    ready = {number: place for place, number in enumerate(order)}
    return tuple(Parameter(name=n, shape=shape, layer=layer, ready=ready[i]) for i, (n, shape, layer) in enumerate(made))
