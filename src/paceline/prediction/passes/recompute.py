"""Cost and savings of recomputation: layers that run their forward pass again, and the stored activations.

Sources: Korthikanti et al. 2022, arXiv:2205.05198, sections 4 and 5 (bytes of each part of a block); PyTorch,
``torch.utils.checkpoint`` (blocks, and ``early_stop``); Megatron-Core, ``--recompute-modules``; torchtitan,
``activation_checkpoint`` (activations that its policy by operation stores); Transformer Engine, ``module/linear.py`` (operands
that a product saves).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from paceline.array_types import Array, Ints
from paceline.errors import UserError
from paceline.hardware.precision import DELAYED, RECIPES, WIDE
from paceline.prediction.passes.blocks import after_blocks, part_sizes
from paceline.prediction.passes.layer_roles import forward_product
from paceline.strategy.parallelism import Parallelism
from paceline.strategy.recompute import CORE, MODULES, Recompute, SelectiveRecompute
from paceline.strategy.sharding import block
from paceline.workload.layers import COMPILED, UPCAST, Layer, Numbers
from paceline.workload.prepared import once
from paceline.workload.table import Workload

_EXPERTS = re.compile(r"(^|\.)(router|route|dispatch|experts\.\w+|combine|shared\.\w+|shared_sum)$")
_SHARED = re.compile(r"(^|\.)shared\.\w+$")
_WIDE_INPUT = re.compile(r"(^|\.)(router|query_down)$")
"""Products whose saved input keeps 16 bits: the router's, which no recipe quantises, and that of queries of latent attention,
where two products save a copy of 8 bits each."""
_ELEMENT_WISE = frozenset({"Add", "Dropout", "GELU", "Mul", "ReLU", "SiLU", "Sigmoid", "Tanh"})
"""Kinds of layers, besides norms, that are one element-wise kernel."""
_MLP = re.compile(r"(^|\.)(expand|gate|act|multiply|contract|mlp|feed_forward)(\.|$)")


@lru_cache(maxsize=65536)
def _named(role: re.Pattern[str], name: str) -> bool:
    """Return whether a layer's name is of the role."""
    return role.search(name) is not None


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Effect of a choice of recomputation on one table of layers.

    Attributes:
        again: 1 for a layer whose forward pass runs again, else 0, (layers,).
        before: layer whose backward pass it precedes, (layers,).
        kept_bytes: saved bytes of one sample of each micro batch in flight.
        largest_bytes: further bytes of the largest part during its recomputation.
        names: index of the last layer of each recomputed part, with the part's name.
        kept: saved bytes of one sample by layer; they sum to ``kept_bytes``.
        parts: layers of each recomputed part, with its further bytes during its recomputation.
    """

    again: Array
    before: Ints
    kept_bytes: float
    largest_bytes: float
    names: tuple[tuple[int, str], ...]
    kept: tuple[float, ...]
    parts: tuple[tuple[tuple[int, ...], float], ...]


def recomputed(workload: Workload, choice: Recompute, numbers: Numbers = "fp32", precision: str = WIDE) -> Recomputed:
    """Return the effect of ``choice`` on ``workload``, by the names of its layers, such as ``layers.3.mlp``; cached.

    Args:
        numbers: as for ``Layer.kept_bytes``.
        precision: a recipe stores the inputs of fused layers' products quantised (``_stored``).
    """
    return _recomputed(workload, choice, numbers, precision if precision in RECIPES and numbers == "fused" else WIDE)


def saved_bytes(workload: Workload, choice: Recompute, numbers: Numbers = "fp32") -> float:
    """Return bytes of one sample that recomputation saves; negative if it needs more."""
    plan = recomputed(workload, choice, numbers)
    return workload.kept_bytes(numbers) - plan.kept_bytes - plan.largest_bytes


_PARTS = (
    *("selective", "selective:layernorm", "selective:mlp", "selective:mlp,layernorm"),
    *("selective:moe_act", "selective:layernorm,moe_act", "selective:moe", "selective:mla_up_proj"),
    "selective:layernorm,moe_act,mla_up_proj",
)
"""Parts of a block in recipes of Megatron-Bridge, alone and together."""


def choices_that_save(workload: Workload) -> tuple[str, ...]:
    """Return ``none``, the parts whose recomputation saves memory in this network (a different amount each), and ``full``."""
    plans = {name: recomputed(workload, Recompute.of(name), "narrow") for name in ("none", *_PARTS)}
    named: dict[tuple[float, float], str] = {}
    for name, plan in plans.items():
        named.setdefault((plan.kept_bytes, plan.largest_bytes), name)
    held = plans["none"].kept_bytes
    saving = (name for name in named.values() if plans[name].kept_bytes + plans[name].largest_bytes < held)
    return ("none", *saving, "full")


@dataclass(slots=True)
class _OperationCosts:
    """Layers with marked parts: the bytes that each still stores, and the largest part's bytes."""

    layers: Sequence[Layer]
    numbers: Numbers
    sizes: list[float]
    again: Array
    before: Ints
    largest: float = 0.0
    names: list[tuple[int, str]] = field(default_factory=list)
    parts: list[tuple[tuple[int, ...], float]] = field(default_factory=list)

    def drop(self, members: Sequence[int], kept_bytes: float, again: Sequence[int], name: str) -> None:
        """Store ``kept_bytes`` for ``members`` together, and recompute ``again`` before the last member's backward pass."""
        freed = sum(self.sizes[i] for i in members) - kept_bytes
        for i in members:
            self.sizes[i] = 0.0
        self.sizes[members[0]] = kept_bytes
        self.again[list(again)] = 1.0
        self.before[list(members)] = members[-1]
        self.largest = max(self.largest, freed)
        self.names.append((members[-1], name))
        self.parts.append((tuple(members), freed))


@once
def _recomputed(workload: Workload, choice: Recompute, numbers: Numbers, precision: str) -> Recomputed:
    layers = workload.layers
    sizes = _stored(workload, numbers, precision)
    table = _OperationCosts(layers, numbers, sizes, np.zeros(len(layers)), np.arange(len(layers)))
    if choice:
        for name, members in _chosen(workload, choice.layers):
            if choice.whole_blocks:
                _recompute_block(table, name, members)
            elif choice.by_operation:
                _by_operation(table, name, members)
            else:
                _modules(table, members, choice.parts)
    kept = tuple(table.sizes)
    return Recomputed(table.again, table.before, sum(kept), table.largest, tuple(table.names), kept, tuple(table.parts))


def _stored(workload: Workload, numbers: Numbers, precision: str) -> list[float]:
    """Return bytes of one sample that each layer stores if nothing is recomputed.

    Under a recipe, a product of Transformer Engine saves its input quantised, by columns alone (``update_usage`` in
    ``module/linear.py``, ``layernorm_linear.py``, ``grouped_linear.py``). The product after attention saves the 16-bit result
    that attention has saved (Megatron-Core, ``set_save_original_input``), except with delayed scaling, which adds a quantised
    copy. Adapters are not products of Transformer Engine.
    """
    layers, recipe = workload.layers, RECIPES.get(precision)
    sizes = [layer.kept_bytes(numbers) for layer in layers]
    if numbers in COMPILED:
        _leave_element_wise(layers, sizes)
    if numbers in UPCAST and workload.frozen:  # frozen weights of norms need no normalised input
        sizes = [
            size - layer.activation_bytes / 2 * layer.kind.endswith("RMSNorm")
            for size, layer in zip(sizes, layers, strict=True)
        ]
    if recipe is None or workload.frozen:
        return sizes
    for i, layer in enumerate(layers):
        product = forward_product(layer)
        if layer.kind != "Linear" or product is None or layer.is_logits or _named(_WIDE_INPUT, layer.name):
            continue
        sizes[i] *= recipe.operand / 2
        if not sizes[i] and i and layers[i - 1].kind == "Attention" and precision == DELAYED:
            sizes[i] = recipe.operand * product.m * product.k * product.batch
    return sizes


def _leave_element_wise(layers: Sequence[Layer], sizes: list[float]) -> None:
    """Set the bytes to 0 that a compiled network computes again: results of element-wise kernels that products read, and masks
    of dropout."""
    before = ""
    for i, layer in enumerate(layers):
        if layer.kind == "Dropout" or (layer.kind == "Linear" and (before.endswith("Norm") or before in _ELEMENT_WISE)):
            sizes[i] = 0.0
        if layer.kind != "Linear":
            before = layer.kind


def check_recompute(workload: Workload, mesh: Parallelism) -> None:
    """Raise UserError if a named part is in no block, or if more blocks recompute than the fullest part of a stage has."""
    if mesh.recompute.parts:
        _check_parts(workload, mesh.recompute.parts)
    if not mesh.recompute_layers:
        return
    blocks, parts = len(block_names(workload)), mesh.pipeline * mesh.virtual_stages
    if blocks < parts > 1:
        return  # such a pipeline is refused elsewhere
    ends = mesh.first_stage_layers, mesh.last_stage_layers
    after = after_blocks(workload)
    most = max(part_sizes(blocks, mesh.pipeline, mesh.virtual_stages, ends, after)) if parts > 1 else blocks
    if mesh.recompute_layers > most:
        whose = workload.name if parts == 1 else f"a part of the pipeline of {workload.name}"
        raise UserError(
            f"{mesh.recompute_layers} layers to recompute: {whose} has {most} blocks", f"give at most {most}, or 0 for all"
        )


def _check_parts(workload: Workload, parts: Sequence[str]) -> None:
    def has(part: str) -> bool:
        return bool(recomputed(workload, SelectiveRecompute(modules=(part,)), "narrow").names)

    lacks = [part for part in parts if part != CORE and not has(part)]
    if lacks:
        present = [f"selective:{part}" for part in MODULES if has(part)]
        instead = f"give {' or '.join(present)}, or leave recompute out" if present else "leave recompute out: it has no blocks"
        raise UserError(f"{workload.name} has no {' or '.join(lacks)} to recompute in its blocks", instead)


def _chosen(workload: Workload, count: int) -> Iterator[tuple[str, list[int]]]:
    """Yield name and layers of each block that recomputes: all, or ``count`` of them at equal distances."""
    members = block_names(workload)
    count = min(count or len(members), len(members))
    for number, (name, own) in enumerate(members.items()):
        if (number + 1) * count // len(members) > number * count // len(members):
            yield name, own


@once
def block_names(workload: Workload) -> Mapping[str, list[int]]:
    """Return the blocks by name, with the indices of their layers."""
    members: dict[str, list[int]] = {}
    for index, layer in enumerate(workload.layers):
        if name := block(f"{layer.name}."):
            members.setdefault(name, []).append(index)
    return members


def _needed(table: _OperationCosts, members: Sequence[int]) -> list[int]:
    """Return the members before the last one that saves something. The backward pass needs no result of the later ones."""
    last = next((i for i in reversed(members) if table.sizes[i]), members[-1])
    return [i for i in members if i < last]


def _input_bytes(table: _OperationCosts, members: Sequence[int]) -> float:
    """Return bytes of a block's input, assumed equal to the stored bytes of its first layer without an fp32 copy."""
    first = next((i for i in members if table.sizes[i]), None)
    if first is None:
        return 0.0
    numbers = UPCAST.get(table.numbers)
    return table.sizes[first] if numbers is None else min(table.sizes[first], table.layers[first].kept_bytes(numbers))


def _recompute_block(table: _OperationCosts, name: str, members: Sequence[int]) -> None:
    """Store only the input of the block.

    A second copy exists during recomputation.
    """
    first = _input_bytes(table, members)
    held = sum(table.sizes[i] for i in members)
    table.drop(members, first, _needed(table, members), name)
    table.largest = max(table.largest, held)
    table.parts[-1] = tuple(members), held


def _by_operation(table: _OperationCosts, name: str, members: Sequence[int]) -> None:
    """Store the input of the block, and the results of attention and of its first, third, ... product.

    A compiled block does not store the result of its last product: the backward pass does not read it.
    """
    width = 4.0 if table.numbers.startswith("fp32") else 2.0
    results, again, products = 0.0, [], 0
    last = max((i for i in members if forward_product(table.layers[i]) is not None), default=-1)
    for i in members:
        fused = next((o for o in table.layers[i].operations if o.kind == "attention" and not o.backward), None)
        product = forward_product(table.layers[i])
        products += product is not None
        if fused is not None:  # stores its result, and the logarithm of each sum
            results += (width * fused.k + 4.0) * fused.m * fused.batch
        elif product is not None and products % 2:
            results += 0.0 if i == last and table.numbers in COMPILED else width * product.m * product.n
        else:
            again.append(i)
    needed = set(_needed(table, members))
    first = _input_bytes(table, members)
    held = sum(table.sizes[i] for i in members)
    table.drop(members, min(held, first + results), [i for i in again if i in needed], name)


def _modules(table: _OperationCosts, members: Sequence[int], modules: Sequence[str]) -> None:
    """Drop the named parts of one block."""
    if CORE in modules:
        for i in members:
            freed = table.layers[i].scores_bytes(table.numbers)
            if freed:
                table.drop([i], table.sizes[i] - freed, [i], table.layers[i].name)
    names = {i: table.layers[i].name for i in members}
    experts = [i for i in members if _named(_EXPERTS, names[i])]
    whole = {
        "mlp": [i for i in members if _named(_MLP, names[i]) and i not in experts],
        "moe": experts,
        "shared_experts": [i for i in experts if _named(_SHARED, names[i]) and "moe" not in modules],
    }
    for module, own in whole.items():
        if module in modules and own:
            table.drop(own, table.layers[own[0]].kept_bytes(table.numbers), _needed(table, own), names[own[0]])
    if "moe_act" in modules and "moe" not in modules:
        _between_products(table, [i for i in experts if not _named(_SHARED, names[i])])
    if "mla_up_proj" in modules:
        _latent(table, members)
    if "layernorm" in modules:
        for norm, readers in _norms(table, members):
            table.drop([norm, *readers], table.sizes[norm], [norm], table.layers[norm].name)


def _norms(table: _OperationCosts, members: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield each norm with the products directly after it, which store its result."""
    for place, i in enumerate(members):
        if table.layers[i].kind.endswith("Norm"):
            readers: list[int] = []
            for j in members[place + 1 :]:
                if table.layers[j].kind != "Linear":
                    break
                readers.append(j)
            if any(table.sizes[j] for j in readers):
                yield i, readers


def _between_products(table: _OperationCosts, experts: Sequence[int]) -> None:
    """Store the input between the experts' products instead of its result, which the last product reads."""
    between = [i for i in experts if table.layers[i].name.rpartition(".")[2] in ("act", "multiply")]
    last = next((i for i in experts if table.layers[i].name.endswith("experts.contract")), None)
    if between and last is not None:
        # Unless it is fused, the gate's product stores both its factors. One of them is the result of the activation.
        factors = 1 if table.numbers == "fused" or table.numbers in COMPILED else 2
        read = table.sizes[between[0]] + sum(table.sizes[i] for i in between[1:]) / factors
        table.drop([*between, last], read, between, table.layers[between[0]].name)


def _latent(table: _OperationCosts, members: Sequence[int]) -> None:
    """Store the latents and the result of latent attention, but no queries, keys and values."""
    last = {table.layers[i].name.rpartition("attention.")[2]: i for i in members}
    if "latent" not in last or "mix" not in last or "project" not in last:
        return
    product = forward_product(table.layers[last["project"]])
    fused = next((o for o in table.layers[last["mix"]].operations if not o.backward), None)
    if product is not None and fused is not None:
        width = 4.0 if table.numbers.startswith("fp32") else 2.0
        result = width * product.m * product.k + 4.0 * fused.m * fused.batch
        again = [last[name] for name in ("query", "key_value", "rotate", "split") if name in last]
        if result < table.sizes[last["mix"]]:
            table.drop([last["mix"]], result, again, table.layers[last["mix"]].name)
            table.before[again] = last["mix"]
