"""How long a search among very many layouts takes on one core, and how few of them it predicts whole.

    python benchmarks/layout_search.py --out RESULTS/layout_search.csv

RESULTS is benchmarks/results. One process, one thread, nothing prepared before but the table of the network. Layouts are
those of one network on one cluster: tensor with and without sequence parallelism, context with both exchanges, pipeline with
virtual stages, all schedules, even and balanced ends, micro batches, four shardings among all replicas and within nodes,
recomputation of all that saves memory and several global batches. ``legal`` are those
that the network, the cluster and the batch allow; each is pruned by memory, pruned by its bound, or predicted whole.
``seconds`` are those of the core, which other work on the machine does not lengthen; ``wall_s`` those of the clock.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rows import append

from paceline.hardware import cluster
from paceline.planning.search.layout_space import LayoutSpace
from paceline.planning.search.layouts import LayoutSearch, search_layouts
from paceline.prediction.passes.recompute import choices_that_save
from paceline.strategy.parallelism import SCHEDULES
from paceline.strategy.sharding import TORCH_SHARDINGS
from paceline.workload import Workload

COLUMNS = (
    "workload",
    "devices",
    "considered",
    "legal",
    "too_large",
    "bounded",
    "predicted",
    "seconds",
    "wall_s",
    "million_s",
    "best",
    "step_s",
)
PER_NODE = 8


def space(batches: tuple[int, ...], most_virtual: int, workload: Workload) -> LayoutSpace:
    """Every choice with all the values that are tried."""
    return LayoutSpace(
        batches=batches,
        contexts=(1, 2, 4, 8, 16),
        virtual_stages=tuple(range(1, most_virtual + 1)),
        micro_batch_sizes=(1, 2, 4, 8, 16),
        schedules=SCHEDULES,
        shardings=TORCH_SHARDINGS,
        sequences=(True, False),
        recomputes=choices_that_save(workload),
    )


def searched(workload: Workload, devices: int, tried: LayoutSpace) -> tuple[LayoutSearch, float, float]:
    """What the search gives, its seconds of the core and of the clock."""
    place = cluster("H100", PER_NODE, devices // PER_NODE, "1x InfiniBand NDR")
    start, worked = time.perf_counter(), time.process_time()
    found = search_layouts(workload, place, tried)
    return found, time.process_time() - worked, time.perf_counter() - start


def main() -> None:
    """Measure and add a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="llama-3-405b")
    parser.add_argument("--devices", type=int, default=16384)
    parser.add_argument("--batches", type=int, nargs="+", default=[1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288])
    parser.add_argument("--most-virtual", type=int, default=63)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    workload = Workload.named(options.workload)
    tried = space(tuple(options.batches), options.most_virtual, workload)
    found, seconds, wall = searched(workload, options.devices, tried)
    mesh = found.candidates[0][1].parallelism
    best = f"tensor {mesh.tensor} context {mesh.context} pipeline {mesh.pipeline}x{mesh.virtual_stages} {mesh.sharding}"
    each = 1e6 * seconds / found.legal
    counts = (found.considered, found.legal, found.too_large, found.bounded, found.predicted)
    values = (
        options.workload,
        options.devices,
        *counts,
        f"{seconds:.4g}",
        f"{wall:.4g}",
        f"{each:.4g}",
        best,
        f"{found.steps.step_s[0]:.5g}",
    )
    append(options.out, COLUMNS, dict(zip(COLUMNS, values, strict=True)))
    shares = f"{found.too_large / found.legal:.1%} too large, {found.bounded / found.legal:.1%} pruned by their bound"
    print(f"{found.legal:,} legal layouts in {seconds:.1f} s: {shares}, {found.predicted} predicted whole; best {best}")


if __name__ == "__main__":
    main()
