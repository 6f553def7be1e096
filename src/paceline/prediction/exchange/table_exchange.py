"""Waits of a step for embedding tables that are divided among all devices (``EmbeddingTables``).

Every device looks up rows of its part for the samples of all, as much as all rows for its own samples. An all-to-all then
sends each device its vectors, and another returns the gradients. Both waits count in full. Parts are assumed to be balanced.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paceline.calibration.constants import Efficiency
from paceline.hardware.cluster import Cluster
from paceline.hardware.precision import BYTES_PER_ELEMENT, RECIPES
from paceline.prediction.exchange.collective_time import alltoall_seconds
from paceline.prediction.passes.compute import Seconds
from paceline.strategy.strategy import Strategy
from paceline.workload.builders.embedding_tables import EmbeddingTables

FP32 = 4.0


def with_table_exchange(
    passes: tuple[Seconds, Seconds], tables: EmbeddingTables, cluster: Cluster, strategy: Strategy, e: Efficiency
) -> tuple[Seconds, Seconds]:
    """Return the passes of one micro batch including the waits of the tables' layer for vectors and for their gradients."""
    seconds, far = alltoall_seconds(np.array([_sent(tables, strategy)]), cluster, e)
    wait = np.zeros_like(passes[0].flops)
    wait[tables.layer] = seconds[0]
    nothing = np.zeros_like(wait)
    near, network = (nothing, wait) if far[0] else (wait, nothing)
    forward, backward = (replace(part, near=part.near + near, far=part.far + network) for part in passes)
    return forward, backward


def wire_bytes(tables: EmbeddingTables | None, strategy: Strategy) -> int:
    """Return bytes of vectors and of their gradients that a device sends in a step."""
    if tables is None:
        return 0
    each = 2 * _sent(tables, strategy) * (1 - 1 / strategy.world_size)
    return round(each * strategy.parallelism.micro_batches)


def table_bytes(tables: EmbeddingTables | None, workers: int) -> float:
    """Return bytes of a device's part, with the optimizer's state. Rows and state are fp32. No gradient outlives the backward
    pass."""
    return 0.0 if tables is None else FP32 * tables.elements * (1 + tables.state) / workers


def _sent(tables: EmbeddingTables, strategy: Strategy) -> float:
    """Return bytes of the vectors of a micro batch, at the width of the precision; a recipe's are 16 bits wide."""
    width = 2 if strategy.precision in RECIPES else BYTES_PER_ELEMENT[strategy.precision]
    return tables.bytes * strategy.micro_batch_size * width / FP32
