"""Low-rank adapters of products with frozen weights (LoRA: Hu et al. 2021, arXiv:2106.09685).

A product of (inputs, outputs) gets two small ones, (inputs, rank) and (rank, outputs): rank (inputs + outputs) trained numbers,
as in PEFT. The frozen weights get no gradient, so their inputs are not kept for one. Gradients still pass through every product
to the layers in front of it. PEFT scales the adapter's result and adds it to the product's, one kernel each, and drops some of
its input if asked (``tuners/lora/layer.py``, ``Linear.forward``).

Frozen weights may be held in 4 or 8 bits (QLoRA: Dettmers et al. 2023, arXiv:2305.14314, section 3). Each pass through a
product then reads its codes and writes its weights in 16 bits for the product to read. It keeps its input all the same
(bitsandbytes, ``autograd/_functions.py``, ``MatMul4Bit`` and ``MatMul8bitLt``: ``ctx.tensors``). Embeddings and the output
layer stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from paceline.errors import UserError, check_count, shown, unknown
from paceline.names import fold
from paceline.workload.builders.layer_builders import HALF, MASK, WORD, linear, memory
from paceline.workload.layers import Layer, LayerTable, Operation, Parameter

Table = TypeVar("Table", bound=LayerTable)
ATTENTION, ALL = "attention", "all-linear"
EXAMPLE = (
    "write it as r=16, or r=16,targets=q_proj+v_proj, targets=attention (the default) or targets=all-linear; "
    "bits=4 holds the frozen products in 4 bits (QLoRA)"
)
BITS = (0, 4, 8)
_OPTIONS = ("r", "targets", "bits", "embeddings", "dropout")
SCALE_BITS = 0.5
"""Bits of the scales for each code: 32 bits for a block of 64 (Dettmers et al. 2023, section 3)."""
WIDE_BITS = 16
"""Bits of a weight as a product reads it, and of frozen weights that stay as they are."""
_PRODUCTS = ("Linear", "Conv1D")
_IN_ATTENTION = re.compile(
    r"(^|\.)(\w*attention|\w*attn\w*|cross|self|own)\.|attentions\.\d+\.to_\w"
    r"|(^|\.)(image|text)\.(qkv|project)$|(^|\.)singles\.\d+\.expand$"  # FLUX, which has no module of attention
    r"|mixer\.[qkvo]_proj$",
    re.IGNORECASE,
)
_ROUTER = re.compile(r"(^|\.)(router|shared\.scale)$")
SAME_PRODUCT: tuple[tuple[str, ...], ...] = (
    ("query", "q_proj", "q", "q_lin", "wq", "q_b_proj", "to_q"),
    ("query_down", "q_a_proj"),
    ("key", "k_proj", "k", "k_lin", "wk", "to_k"),
    ("value", "v_proj", "v", "v_lin", "wv", "to_v"),
    ("qkv", "qkv_proj", "c_attn", "query_key_value", "wqkv"),
    ("key_value", "kv_b_proj"),
    ("latent", "kv_a_proj_with_mqa"),
    ("project", "o_proj", "out_proj", "o", "out_lin", "wo", "dense"),
    ("gate", "gate_proj", "w1"),
    ("expand", "up_proj", "fc1", "c_fc", "fc_in", "dense_h_to_4h", "wi", "w3", "lin1"),
    ("contract", "down_proj", "fc2", "fc_out", "dense_4h_to_h", "w2", "lin2"),
)
"""Names of one product in the tables of this package, in PEFT's and in checkpoints."""
_SYNONYMS: Mapping[str, tuple[str, ...]] = MappingProxyType({fold(name): names for names in SAME_PRODUCT for name in names})


@dataclass(frozen=True, slots=True)
class LoRA:
    """Products with adapters, and the rank.

    Attributes:
        rank: inner width of an adapter.
        targets: ``attention`` (its products), ``all-linear`` (all but the output layer, routers and experts, as PEFT), or the
            last parts of layers' names: ``q_proj``, ``v_proj``.
        bits: bits of an element of the frozen products, 4 or 8; 0: those of the precision.
        embeddings: whether embeddings and the output layer are trained whole (PEFT, ``modules_to_save``): a copy of them in
            their own width. The frozen ones stay.
        dropout: share of an adapter's input that is dropped. Each adapter then keeps a copy of its own.

    Raises:
        UserError: a rank below 1, no targets, or other bits.
    """

    rank: int
    targets: tuple[str, ...] = (ATTENTION,)
    bits: int = 0
    embeddings: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_count(self.rank, "as the rank of adapters")
        if not self.targets or not all(isinstance(name, str) and name for name in self.targets):
            raise UserError(f"adapters beside {self.targets!r}", EXAMPLE)
        if self.bits not in BITS:
            raise UserError(f"frozen weights of {shown(self.bits)} bits", "give bits=4 or bits=8, or leave it out")
        if not 0 <= self.dropout < 1:
            raise UserError(f"adapters with dropout {self.dropout!r}", "give dropout=0.05, from 0 to less than 1")

    @property
    def text(self) -> str:
        """The adapters as a user types them: ``r=16,targets=q_proj+v_proj``."""
        return f"r={self.rank},targets={'+'.join(self.targets)}" + (
            (f",bits={self.bits}" if self.bits else "")
            + (",embeddings=whole" if self.embeddings else "")
            + (f",dropout={self.dropout:g}" if self.dropout else "")
        )


def parse_lora(text: str) -> LoRA:
    """Parse ``r=16``, ``16`` or ``r=16,targets=q_proj+v_proj``. Raises UserError for anything else."""
    given: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals and name.isdecimal():  # a rank alone
            name, equals, value = "r", "=", name
        if not equals and fold(name) in ("qlora", "nf4", "4bit", "8bit"):  # a word for the frozen weights
            name, equals, value = "bits", "=", "8" if "8" in name else "4"
        key = {"rank": "r", "target": "targets", "targetmodules": "targets"}.get(fold(name), name)
        if not equals or not value or key in given:
            raise UserError(f"LoRA {text!r}", EXAMPLE)
        if key not in _OPTIONS:
            raise unknown("option of LoRA", name, _OPTIONS)
        given[key] = value
    if not given.get("r", "").isdecimal():
        raise UserError(f"LoRA {text!r} has no rank", EXAMPLE)
    targets = tuple(name.strip() for name in given.get("targets", ATTENTION).split("+"))
    bits = given.get("bits", "0")
    if not bits.isdecimal():
        raise UserError(f"LoRA {text!r}: bits {bits!r}", EXAMPLE)
    dropout = given.get("dropout", "0")
    if not re.fullmatch(r"[01]?\.?\d{1,9}", dropout):
        raise UserError(f"LoRA {text!r}: dropout {dropout!r}", "give dropout=0.05, from 0 to less than 1")
    if given.get("embeddings", "whole") not in ("whole", "frozen"):
        raise UserError(f"LoRA {text!r}: embeddings {given['embeddings']!r}", "give embeddings=whole, or leave it out")
    chosen = tuple({"alllinear": ALL}.get(fold(name), name) for name in targets)
    return LoRA(int(given["r"]), chosen, int(bits), given.get("embeddings") == "whole", float(dropout))


def with_adapters(table: Table, lora: LoRA, name: str = "") -> Table:
    """Return the network with all weights frozen and adapters at the targets.

    Args:
        name: name of the result; empty means the name of the table, with the rank.

    Raises:
        UserError: a target that no layer has, or a network with divided embedding tables.
    """
    if table.tables:
        raise UserError(f"LoRA with the embedding tables of {table.name}", "leave --lora out")
    chosen, whole = _chosen(table, lora), _embeddings(table) if lora.embeddings else {}
    layers, shared = [], False  # whether an adapter keeps what the products since the last one that kept its input read
    for index, layer in enumerate(table.layers):
        product = _product(layer)
        if index in whole:
            layers.append(layer)
            continue
        if product is None:
            layers.append(_frozen(layer))
            continue
        shared = shared and layer.activation_bytes == 0
        made = _with_adapter(layer, product, lora, shared) if index in chosen else _frozen(layer)
        layers.append(_unpacking(made, layer, product, lora.bits) if lora.bits and not layer.is_logits else made)
        shared = shared or index in chosen
    return replace(
        table,
        name=name or f"{table.name}-lora-r{lora.rank}",
        layers=tuple(layers),
        parameters=_parameters(table, chosen, lora.rank, whole),
        frozen=table.frozen + table.num_parameters,
        unwidened=sum(parameter.size for parameter in whole.values()),
        frozen_bits=_mean_bits(table, lora.bits),
        source=f"{table.source}; LoRA {lora.text}",
    )


def _embeddings(table: LayerTable) -> dict[int, Parameter]:
    """Return the matrices of embeddings and of the output layer by the index of their layer."""
    own = [(p.layer, p) for p in table.parameters if len(p.shape) == 2]
    return {index: p for index, p in own if table.layers[index].kind == "Embedding" or table.layers[index].is_logits}


def _mean_bits(table: LayerTable, bits: int) -> float:
    """Return bits of a frozen element at the mean, with the scales of codes; 0 without codes."""
    if not bits:
        return 0.0
    owners = {parameter.layer: parameter.size for parameter in table.parameters if len(parameter.shape) == 2}
    packed = sum(size for index, size in owners.items() if _product(table.layers[index]) and not table.layers[index].is_logits)
    share = packed / (table.frozen + table.num_parameters)
    return share * (bits + SCALE_BITS) + (1 - share) * WIDE_BITS


def _unpacking(layer: Layer, trained: Layer, product: Operation, bits: int) -> Layer:
    """Return a frozen product whose weights each pass unpacks: it reads codes and writes numbers of 16 bits.

    It keeps its input as the ``trained`` product does; products of one input share it, since autocast makes no copies.
    """
    elements = product.k * product.n * product.calls
    moved = elements * (bits + SCALE_BITS + WIDE_BITS) / 8
    unpack = Operation(kind="memory", backward=False, calls=product.calls, fixed_bytes=moved * WORD / HALF)
    passes = (unpack, replace(unpack, backward=True))
    return replace(
        layer,
        operations=layer.operations + passes,
        activation_bytes=layer.activation_bytes + trained.activation_bytes,
        activation_bytes_half=(layer.activation_bytes_half or 0.0) + trained.activation_bytes * HALF / WORD,
    )


def _product(layer: Layer) -> Operation | None:
    """Return the one product of a linear layer in the forward pass; None for other layers."""
    forward = [o for o in layer.operations if not o.backward and o.kind != "memory"]
    plain = layer.kind in _PRODUCTS and len(forward) == 1 and forward[0].grows == "m" and forward[0].batch == 1
    return forward[0] if plain else None


def _chosen(table: LayerTable, lora: LoRA) -> frozenset[int]:
    """Return the indices of the layers that get adapters."""
    able = {
        index: layer.name
        for index, layer in enumerate(table.layers)
        if _product(layer) and not layer.is_logits and not _ROUTER.search(layer.name)
    }
    chosen: set[int] = set()
    for target in lora.targets:
        own = [index for index, name in able.items() if _is_target(name, target)]
        if not own:
            ends = dict.fromkeys(name.rpartition(".")[2] for name in able.values())
            legal = [ATTENTION] * any(map(_IN_ATTENTION.search, able.values())) + [ALL] * bool(able) + list(ends)
            fix = f"give targets={ALL}" if target == ATTENTION and able else ""
            raise unknown(f"linear layer of {table.name}", target, legal, fix, few=12)
        chosen.update(own)
    return frozenset(chosen)


def _is_target(name: str, target: str) -> bool:
    if target == ALL:
        return True
    if target == ATTENTION:
        return _IN_ATTENTION.search(name) is not None
    last = name.rpartition(".")[2]
    return name == target or name.endswith(f".{target}") or last in _SYNONYMS.get(fold(target), ())


def _frozen(layer: Layer) -> Layer:
    """Return a layer whose weights get no gradient. A table of tokens needs no backward pass at all."""
    if layer.kind == "Embedding":
        forward = tuple(o for o in layer.operations if not o.backward)
        return replace(layer, operations=forward, activation_bytes=0.0, activation_bytes_half=0.0)
    operations = tuple(o for o in layer.operations if not (o.backward and o.grows == "k"))
    if layer.kind in _PRODUCTS or layer.kind.startswith("Conv"):
        return replace(layer, operations=operations, activation_bytes=0.0, activation_bytes_half=0.0)
    return replace(layer, operations=operations)


def _with_adapter(layer: Layer, product: Operation, lora: LoRA, shared: bool) -> Layer:
    """Return a frozen product and its adapter, which keeps its input unless another layer does, and always what dropout leaves.

    Args:
        shared: True if an earlier adapter keeps the same input.
    """
    rank = lora.rank
    rows, inputs, outputs, times = product.m, int(product.k), int(product.n), product.calls
    down, up = linear("", rows, inputs, rank, bias=False), linear("", rows, rank, outputs, bias=False)
    added = tuple(
        replace(o, calls=times, flops=o.flops * times, bytes=o.bytes * times, fixed_bytes=o.fixed_bytes * times)
        for o in (*down.operations, *up.operations)
    )
    added += _around(times, rows * inputs, rows * outputs, lora)
    reads = times * rows * inputs
    if lora.dropout:
        inner = times * rows * rank
        return replace(
            _frozen(layer),
            operations=_frozen(layer).operations + added,
            activation_bytes=(WORD + MASK) * reads + WORD * inner,
            activation_bytes_half=(HALF + MASK) * reads + HALF * inner,
        )
    half = layer.activation_bytes_half
    own = layer.activation_bytes > 0
    own_half = own if half is None else half > 0
    keeps = own or (own_half and not shared)  # with neither, what is in front keeps it, as attention its result
    return replace(
        _frozen(layer),
        operations=_frozen(layer).operations + added,
        activation_bytes=WORD * (reads * keeps + times * rows * rank),
        activation_bytes_half=HALF * (reads * own_half + times * rows * rank),
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


def _parameters(table: LayerTable, chosen: frozenset[int], rank: int, whole: Mapping[int, Parameter]) -> tuple[Parameter, ...]:
    """Return two matrices for each chosen layer with unshared weights, and the ``whole`` ones, in the order of the layers.
    Gradients are complete in the reverse order, the second matrix first.
    """
    owned = {p.layer for p in table.parameters if len(p.shape) == 2}
    made: list[tuple[str, tuple[int, ...], int]] = [(p.name, p.shape, index) for index, p in whole.items()]
    for index in sorted(chosen & owned):
        product = _product(table.layers[index])
        assert product is not None
        name = table.layers[index].name
        made += [
            (f"{name}.up.weight", (int(product.n), rank), index),
            (f"{name}.down.weight", (rank, int(product.k)), index),
        ]
    made.sort(key=lambda entry: entry[2])
    order = sorted(range(len(made)), key=lambda i: (-made[i][2], i))
    ready = {number: place for place, number in enumerate(order)}
    return tuple(Parameter(name=n, shape=shape, layer=layer, ready=ready[i]) for i, (n, shape, layer) in enumerate(made))
