"""Consecutive parts of a network in a pipeline: equal numbers of blocks, and the layers outside them at the ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from paceline.array_types import Array, Ints
from paceline.errors import UserError
from paceline.prediction.mesh.tensor_parallel import forward_product, is_expert, style
from paceline.prediction.passes.frozen_layers import frozen_of_layers
from paceline.strategy.sharding import block
from paceline.workload.layers import Layer, Parameter, once_per_network
from paceline.workload.table import Workload

EVEN = (0, 0)
"""Default blocks of the first and of the last stage: as many as the others."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a pipeline.

    Attributes:
        workload: its layers and parameters, of all its parts.
        parts: layers of each part, by their index in ``workload``.
        tied: elements of a table that the other end of the pipeline has too.
    """

    workload: Workload
    parts: tuple[range, ...]
    tied: int = 0


@once_per_network
def stages(workload: Workload, count: int, virtual: int, ends: tuple[int, int] = EVEN) -> tuple[Stage, ...]:
    """Return the stages of ``workload``, of ``virtual`` parts each. Stages of equal layers are one object.

    Args:
        ends: blocks of the first and of the last stage; 0: as many as the others.

    Raises:
        UserError: fewer blocks than parts; blocks of an end that do not divide among its parts.
    """
    bounds = _bounds(workload, count, virtual, ends)
    spans = [range(first, last) for first, last in pairwise(bounds)]
    unique: dict[object, Stage] = {}
    made = []
    for number in range(count):
        own = [spans[number + turn * count] for turn in range(virtual)]
        stage = _stage(workload, own, last=number == count - 1)
        key = tuple(layer.operations for layer in stage.workload.layers), stage.workload.num_parameters
        made.append(unique.setdefault(key, stage))
    tied = _tied(workload)
    if tied and count > 1:
        made[0], made[-1] = replace(made[0], tied=tied), replace(made[-1], tied=tied)
    return tuple(made)


def _bounds(workload: Workload, count: int, virtual: int, ends: tuple[int, int]) -> list[int]:
    """Return the first layer of each part, and the end."""
    begins = block_begins(workload)
    parts = count * virtual
    if len(begins) < parts:
        raise UserError(
            f"a pipeline of {parts} parts: {workload.name} has {len(begins)} blocks",
            f"give at most {max(1, len(begins))} parts",
        )
    sizes = part_sizes(len(begins), count, virtual, ends)
    firsts = list(begins.values())
    return [0, *(firsts[sum(sizes[: part + 1])] for part in range(parts - 1)), len(workload.layers)]


@once_per_network
def block_begins(workload: Workload) -> dict[str, int]:
    """Return the first layer of each block, by the block's name, in the order of the network.

    Empty if the blocks hold less than half of the FLOPs and of the kernels: stages of them would have hardly any work
    (Tacotron 2 works in the loop between its convolutions).
    """
    begins: dict[str, int] = {}
    within, outside = np.zeros(2), np.zeros(2)
    for index, layer in enumerate(workload.layers):
        name = block(f"{layer.name}.")
        work = within if name else outside
        for operation in layer.operations:
            work += operation.calls * operation.flops, operation.calls
        if name:
            begins.setdefault(name, index)
    return begins if (within >= outside).any() else {}


def part_sizes(blocks: int, count: int, virtual: int = 1, ends: tuple[int, int] = EVEN) -> list[int]:
    """Return the blocks of each part of ``count`` stages.

    The remainder goes to the middle, since the ends also have the embedding and the logits. Args and errors as ``stages``.
    """
    parts, sizes = count * virtual, dict[int, int]()
    for name, stage, given in (("first", 0, ends[0]), ("last", count - 1, ends[1])):
        if given % virtual:
            raise UserError(
                f"{given} layers of the {name} stage do not divide among its {virtual} parts", f"give a multiple of {virtual}"
            )
        if given:
            sizes |= dict.fromkeys(range(stage, parts, count), given // virtual)
    rest, others = blocks - sum(sizes.values()), [part for part in range(parts) if part not in sizes]
    if rest < len(others) or (rest and not others):
        raise UserError(
            f"stages with {' and '.join(str(n) for n in ends if n)} layers at their ends leave {rest} of {blocks} blocks for "
            f"{len(others)} parts",
            "give the ends other numbers of layers",
        )
    each, more = divmod(rest, len(others)) if others else (0, 0)
    order = sorted(others, key=lambda part: abs(2 * part - parts + 1))
    return [sizes.get(part, each + (part in order[:more])) for part in range(parts)]


def _stage(workload: Workload, spans: Sequence[range], last: bool) -> Stage:
    indices = [index for span in spans for index in span]
    place = {index: position for position, index in enumerate(indices)}
    own = [p for p in workload.parameters if p.layer in place]
    tied = _tied_parameter(workload) if last and 0 not in place else None
    if tied is not None:
        logits = max(index for index in indices if workload.layers[index].is_logits)
        own.append(replace(tied, layer=logits, ready=-1))
    ready = {id(p): position for position, p in enumerate(sorted(own, key=lambda p: p.ready))}
    parameters = tuple(replace(p, layer=place[p.layer], ready=ready[id(p)]) for p in own)
    frozen = round(float(frozen_of_layers(workload)[indices].sum())) if workload.frozen else 0
    table = replace(
        workload,
        layers=tuple(workload.layers[index] for index in indices),
        parameters=parameters,
        input_bytes=workload.input_bytes if 0 in place else 0.0,
        frozen=frozen,
    )
    starts = [place[span[0]] for span in spans]
    return Stage(table, tuple(range(start, start + len(span)) for start, span in zip(starts, spans, strict=True)))


def _tied_parameter(workload: Workload) -> Parameter | None:
    """Return the table of tokens that the logits share; None if they have a separate matrix."""
    logits = [i for i, layer in enumerate(workload.layers) if layer.is_logits and forward_product(layer)]
    if not logits or any(p.layer == logits[-1] and p.name.endswith("weight") for p in workload.parameters):
        return None
    return next((p for p in workload.parameters if style(workload.layers[p.layer]) == "entries"), None)


def _tied(workload: Workload) -> int:
    parameter = _tied_parameter(workload)
    return 0 if parameter is None else parameter.size


def boundary_bytes(layers: Sequence[Layer]) -> float:
    """Return the fp32 bytes of one sample that leave those layers, which is the output of their last product.

    Experts write a row for each copy of a token, and a router its scores.
    """
    for layer in reversed(layers):
        product = forward_product(layer)
        if product is not None and not is_expert(layer.name) and not layer.name.endswith(".router"):
            return 4.0 * product.m * product.n * max(1.0, product.batch)
    return 0.0


@dataclass(frozen=True, slots=True)
class Segments:
    """One device's part of the blocks. The first and the last include the layers outside the blocks. Arrays are (blocks,).

    Attributes:
        starts: first layer of each.
        elements, tensors, frozen: trained elements and tensors, frozen elements.
        experts: elements of experts among the trained ones.
        boundary: fp32 bytes of one sample that leave it.
        tied: elements that the first and the last both count.
    """

    workload: Workload
    workloads: tuple[Workload, ...]
    starts: Ints
    elements: Array
    experts: Array
    tensors: Array
    frozen: Array
    boundary: Array
    tied: float


def segments_of(workload: Workload, blocks: int) -> Segments:
    """Return the blocks of a network as stages of a pipeline of one block each."""
    cut = stages(workload, blocks, 1) if blocks > 1 else ()
    workloads = tuple(stage.workload for stage in cut) or (workload,)
    layers = np.array([len(own.layers) for own in workloads])
    starts = np.cumsum(layers) - layers
    boundary = {id(own): boundary_bytes(own.layers) for own in workloads}
    experts = {id(own): _expert_elements(own) for own in workloads}
    return Segments(
        workload=workload,
        workloads=workloads,
        starts=starts,
        elements=np.array([float(own.num_parameters) for own in workloads]),
        experts=np.array([experts[id(own)] for own in workloads]),
        tensors=np.array([float(len(own.parameters)) for own in workloads]),
        frozen=np.add.reduceat(frozen_of_layers(workload), starts) if workload.frozen else np.zeros(len(layers)),
        boundary=np.array([boundary[id(own)] for own in workloads]),
        tied=float(cut[0].tied) if cut else 0.0,
    )


def _expert_elements(workload: Workload) -> float:
    return float(sum(p.size for p in workload.parameters if is_expert(workload.layers[p.layer].name)))
