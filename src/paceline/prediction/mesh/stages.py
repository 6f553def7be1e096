"""Consecutive parts of a network in a pipeline: equal numbers of blocks, and the layers outside them at the ends.

An end may have those layers alone: 128 parts of 126 blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from paceline.array_types import Array, Ints
from paceline.errors import UserError
from paceline.prediction.passes.blocks import EVEN, after_blocks, block_begins, most_parts, part_sizes
from paceline.prediction.passes.frozen_layers import frozen_of_layers
from paceline.prediction.passes.layer_roles import forward_product, is_expert, style
from paceline.strategy.sharding import block
from paceline.workload.layers import Layer, Parameter
from paceline.workload.prepared import once
from paceline.workload.table import Workload


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


@once
def stages(workload: Workload, count: int, virtual: int, ends: tuple[int, int] = EVEN) -> tuple[Stage, ...]:
    """Return the stages of ``workload``, of ``virtual`` parts each. Stages of equal parts are one object, also of other calls.

    Args:
        ends: blocks of the first and of the last stage; 0: as many as the others.

    Raises:
        UserError: fewer blocks than parts, by more than the two ends; blocks of an end that do not divide among its parts.
    """
    bounds = _bounds(workload, count, virtual, ends)
    spans = [range(first, last) for first, last in pairwise(bounds)]
    unique, made = _known_stages(workload), []
    for number in range(count):
        own = [spans[number + turn * count] for turn in range(virtual)]
        stage = _stage(workload, own, last=number == count - 1)
        table = stage.workload
        operations = tuple(layer.operations for layer in table.layers)
        key = operations, table.num_parameters, table.input_bytes, table.frozen, stage.parts
        made.append(unique.setdefault(key, stage))
    tied = _tied(workload)
    if tied and count > 1:
        made[0], made[-1] = replace(made[0], tied=tied), replace(made[-1], tied=tied)
    return tuple(made)


@once
def _known_stages(workload: Workload) -> dict[object, Stage]:
    """Return the stages that were made so far, by what they compute and hold."""
    return {}


def _bounds(workload: Workload, count: int, virtual: int, ends: tuple[int, int]) -> list[int]:
    """Return the first layer of each part, and the end."""
    begins = block_begins(workload)
    parts = count * virtual
    if most_parts(len(begins)) < parts:
        raise UserError(
            f"a pipeline of {parts} parts: {workload.name} has {len(begins)} blocks",
            f"give at most {most_parts(len(begins))} parts",
        )
    sizes = part_sizes(len(begins), count, virtual, ends, after_blocks(workload))
    last = list(begins)[-1] if begins else ""
    end = max((i for i, layer in enumerate(workload.layers) if block(f"{layer.name}.") == last), default=-1) + 1
    firsts = [*begins.values(), end]
    return [0, *(firsts[sum(sizes[: part + 1])] for part in range(parts - 1)), len(workload.layers)]


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
    """Return the fp32 bytes of one sample that leave those layers: the output of the last product.

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


@once
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
