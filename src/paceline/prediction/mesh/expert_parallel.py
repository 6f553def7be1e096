"""One device's part of a network whose experts are divided among a group, and the exchange of the group.

Each device of a group has some of the experts, and its own tokens. Before the experts an all-to-all sends copies of the tokens
to them (dispatch). After them another returns the results (combine). The backward pass has both in reverse (Lepikhin et
al. 2020, GShard, arXiv:2006.16668, section 3.2). Groups are within a pipeline stage, across its other dimensions (Liu
et al. 2025, MoE Parallel Folding, arXiv:2504.14960, section 3). If several devices also divide each expert by its width,
they gather each other's tokens first and sum up their results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from paceline.errors import UserError
from paceline.prediction.mesh.tensor_parallel import (
    Collective,
    CollectiveKind,
    Share,
    divided_parameter,
    divided_product,
    fewer_tokens,
)
from paceline.prediction.passes.layer_roles import forward_product, is_expert, style
from paceline.strategy.parallelism import Parallelism
from paceline.workload.layers import Layer, Operation, Parameter
from paceline.workload.prepared import once
from paceline.workload.table import Workload

_FP32 = 4.0
_DISPATCH, _COMBINE, _ROUTER = "dispatch", "combine", "router"
_MOVED = (_DISPATCH, _COMBINE)


@dataclass(frozen=True, slots=True)
class ExpertShare(Share):
    """Share of a device, with the layers that take longer on the device whose experts receive most tokens."""

    uneven: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Group:
    """Group of ``experts`` devices, each divided into ``parts``. ``sorts``: whether tokens arrive by sender, not by expert."""

    experts: int
    parts: int
    imbalance: float
    sorts: bool


@dataclass(frozen=True, slots=True)
class _Copies:
    """Traffic of one sample's tokens in a block: ``each`` copies of a token, ``bytes`` at fp32, to a share of ``experts``."""

    each: float
    bytes: float
    experts: float
    within: float


def expert_share(workload: Workload, mesh: Parallelism) -> ExpertShare:
    """Return one device's share of the experts of ``workload``, which is already one device's share by tokens. The result is
    cached for equal arguments as long as the workload lives.

    The share is that of the device whose experts get most tokens: ``mesh.expert_imbalance`` times the mean.

    Raises:
        UserError: a network without experts, or with a number or a width that does not divide among the group.
    """
    group = _Group(mesh.expert, mesh.expert_tensor, mesh.expert_imbalance, not mesh.expert_exchange.once_per_node)
    return _expert_share(workload, group)


@once
def has_experts(workload: Workload) -> bool:
    """Return whether some layers are products of experts that receive tokens."""
    return _has_experts(workload)


@once
def _has_experts(workload: Workload) -> bool:
    return any(is_expert(layer.name) and forward_product(layer) is not None for layer in workload.layers)


def expert_count(workload: Workload) -> int:
    """Return the number of experts of a block; 0 without any."""
    return round(_copies(workload).experts) if has_experts(workload) else 0


def _role(layer: Layer) -> str:
    return layer.name.rpartition(".")[2]


@once
def _expert_share(workload: Workload, group: _Group) -> ExpertShare:
    if not has_experts(workload):
        size = group.experts * group.parts
        raise UserError(f"expert parallelism of {size}: {workload.name} has no experts", "give expert=1")
    copies = _copies(workload)
    uneven = frozenset(i for i, layer in enumerate(workload.layers) if is_expert(layer.name) or _role(layer) in _MOVED)
    layers = list(workload.layers)
    for index in uneven:
        layers[index] = _of_group(layers[index], group, copies)
    parameters = tuple(_own_parameter(p, workload.layers[p.layer], group.experts, group.parts) for p in workload.parameters)
    own = replace(workload, layers=tuple(layers), parameters=parameters)
    return ExpertShare(own, tuple(_collectives(workload.layers, group, copies)), uneven)


def _copies(workload: Workload) -> _Copies:
    """Return the copies of tokens in a block. All blocks with experts are equal."""
    products = {_role(layer): o for layer in reversed(workload.layers) if (o := forward_product(layer)) is not None}
    first = next(o for x in workload.layers if is_expert(x.name) and (o := forward_product(x)) is not None)
    router, rows = products[_ROUTER], first.m * first.batch
    return _Copies(rows / router.m, _FP32 * rows * first.k, first.batch, workload.routed_share)


def _of_group(layer: Layer, group: _Group, copies: _Copies) -> Layer:
    """Return a device's experts with the whole group's tokens for them, or the layer that moves these tokens."""
    forward = forward_product(layer)
    experts, parts, imbalance = group.experts, group.parts, group.imbalance
    operations, held = layer.operations, imbalance
    if _role(layer) in _MOVED and group.sorts and 1 < experts < copies.experts:
        # With several experts on a device, a further kernel sorts tokens on both ways (Megatron-Core, token dispatcher).
        operations = tuple(replace(o, calls=o.calls + 1, bytes=o.bytes + 2 * copies.bytes) for o in operations)
    if forward is not None and is_expert(layer.name):
        if forward.batch % experts:
            raise UserError(
                f"the {forward.batch:g} experts of {layer.name} do not divide among {experts} devices",
                "give a divisor of the experts",
            )
        if parts > 1:
            how = style(replace(layer, name=_role(layer)))
            if (forward.n if how == "columns" else forward.k) % parts:
                raise UserError(f"the width of {layer.name} does not divide among {parts} devices", "give a divisor of it")
            operations = tuple(divided_product(o, forward, how, parts, False) for o in operations)
            held *= parts if how == "columns" else 1  # whole rows of all devices
        operations = tuple(_own_experts(o, experts, parts) for o in operations)
    elif is_expert(layer.name):  # a loop over the experts of the device
        operations = tuple(replace(o, batch=o.batch / experts) for o in operations)
    operations = tuple(fewer_tokens(o, 1 / imbalance) for o in operations)
    half = None if layer.activation_bytes_half is None else layer.activation_bytes_half * held
    return replace(layer, operations=operations, activation_bytes=layer.activation_bytes * held, activation_bytes_half=half)


def _own_experts(o: Operation, experts: int, parts: int) -> Operation:
    """Return the device's own experts of a grouped product, which have rows from all devices of the group."""
    if o.kind != "matmul":
        return replace(o, fixed_bytes=o.fixed_bytes / experts)
    more = fewer_tokens(o, 1 / (experts * parts))
    return replace(
        more,
        flops=more.flops / experts,
        bytes=more.bytes / experts,
        fixed_bytes=o.fixed_bytes / experts,
        batch=o.batch / experts,
    )


def _own_parameter(p: Parameter, layer: Layer, experts: int, parts: int) -> Parameter:
    if not is_expert(layer.name):
        return p
    count, *shape = p.shape
    expert = replace(p, shape=tuple(shape))
    how = style(replace(layer, name=_role(layer)))
    divided = divided_parameter(expert, how, parts) if parts > 1 else expert
    return replace(p, shape=(ceil(count / experts), *divided.shape))


def _collectives(layers: Sequence[Layer], group: _Group, copies: _Copies) -> Iterator[Collective]:
    """Yield the dispatch and the combine of each block with experts. Bytes are those of the fullest device."""
    size = copies.bytes * group.imbalance
    for index, layer in enumerate(layers):
        role = _role(layer)
        for backward in (False, True) if role in _MOVED else ():
            if group.experts > 1:
                yield Collective(index, backward, "alltoall", size, group="expert", copies=copies.each, within=copies.within)
            if group.parts > 1:
                kind: CollectiveKind = "gather" if (role == _DISPATCH) != backward else "scatter"
                yield Collective(index, backward, kind, size * group.parts, group="expert_tensor")
