"""A network as the blocks that a pipeline's stages are made of, and what each block holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array, Ints
from paceline.prediction.mesh.stages import boundary_bytes, stages
from paceline.prediction.mesh.tensor_parallel import is_expert
from paceline.prediction.passes.frozen_layers import frozen_of_layers
from paceline.workload.table import Workload


@dataclass(frozen=True, slots=True)
class Segments:
    """One device's part of the blocks, the first and the last with what lies outside the blocks; arrays are (blocks,).

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
    """The blocks of a network as stages of a pipeline of one block each."""
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
