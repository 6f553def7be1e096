"""Critical batch by branched runs, next to the noise scale, along one run; and the same run with a batch that grows.

    python benchmarks/branched_batch.py --data DIR --out FILE.csv

One task, the characters of ``large_tasks``: Adam at a constant rate, tuned at the smallest batch. At each place of the run,
branches train equally many samples at batches that double, with the square root of the batch on the rate. The critical batch is
the largest whose held-out loss is within the tolerance of the smallest batch's, like all smaller ones. The noise scale is that
of the steps just before the place. Then a run whose batch grows by these rows is compared with the constant one after the same
samples. One row a place and a run, added at once.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from critical_batch import gradient
from large_tasks import TASKS, Data, Part, batches, evaluate, read, say
from rows import append
from torch import Tensor, nn

from paceline.prediction.learning.branched_batch import TOLERANCE, BranchedBatch, BranchedRun, stages_within
from paceline.prediction.learning.noise_scale import NoiseScale
from paceline.strategy.recipe import scaled
from paceline.training.runs.loop import make_optimizer

TASK, BATCH, RATE, PARTS = TASKS["characters"], 128, 0.004, 4
PLACES = (0, 16_384, 65_536, 196_608)
"""Samples before the branches."""
WINDOW = 32_768
"""Samples of a branch."""
BRANCHES = (128, 256, 512, 1024, 2048, 4096)
COLUMNS = ("what", "seed", "samples", "critical_batch", "bounded", "noise_scale", "losses", "steps", "loss", "seconds")


def main() -> None:
    """Run all places and the two runs of each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="directory of the text")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = read(TASK, options.data)
    for seed in range(options.seeds):
        study(data, seed, options.out)


def study(data: Data, seed: int, out: Path) -> None:
    """Add the rows of one seed."""
    model, held = TASK.model(seed), data.tune.first(TASK.glance)
    optimizer = make_optimizer("adam", model.parameters(), RATE)
    order = batches(len(data.train), BATCH, seed)
    seen, found = 0, list[tuple[int, int]]()
    for place in PLACES:
        start = time.perf_counter()
        scale = NoiseScale(PARTS)
        for _ in range((place - seen) // BATCH):
            scale.add(*step(model, optimizer, data.train, next(order), PARTS))
        seen = place
        rows = torch.cat(list(itertools.islice(order, WINDOW // BATCH)))
        branches = tuple(BranchedRun(batch, branch(model, optimizer, data.train, rows, batch, held)) for batch in BRANCHES)
        result = BranchedBatch(place, branches, TOLERANCE)
        found.append((place, result.critical_batch))
        order = itertools.chain(rows.split(BATCH), order)
        losses = " ".join(f"{b.loss:.4f}" for b in branches)
        noise = scale.batch(BATCH // PARTS)
        add(
            out,
            start,
            what="branches",
            seed=seed,
            samples=place,
            critical_batch=result.critical_batch,
            bounded=result.bounded,
            noise_scale=round(noise) if noise else "",
            losses=losses,
        )
    total = PLACES[-1] + WINDOW
    for name, stages in (("constant", [(0, BATCH)]), ("grown", stages_within(found, BATCH, BRANCHES[-1]))):
        start = time.perf_counter()
        model = TASK.model(seed)
        optimizer = make_optimizer("adam", model.parameters(), RATE)
        steps = 0
        for rows in grown(batches(len(data.train), BATCH, seed), stages, total):
            set_rate(optimizer, len(rows))
            step(model, optimizer, data.train, rows, 1)
            steps += 1
        schedule, loss = " ".join(f"{size}@{samples}" for samples, size in stages), round(evaluate(model, held)[1], 4)
        add(out, start, what=name, seed=seed, samples=total, losses=schedule, steps=steps, loss=loss)


def add(out: Path, start: float, **values: Any) -> None:
    """Add one row of work that began at ``start``."""
    row = {name: values.get(name, "") for name in COLUMNS} | {"seconds": round(time.perf_counter() - start, 1)}
    append(out, COLUMNS, row)
    say(row)


def grown(order: Iterator[Tensor], stages: list[tuple[int, int]], total: int) -> Iterator[Tensor]:
    """The rows of each step of a run in stages."""
    seen = 0
    while seen < total:
        batch = next(size for samples, size in reversed(stages) if seen >= samples)
        yield torch.cat(list(itertools.islice(order, batch // BATCH)))
        seen += batch


def branch(model: nn.Module, optimizer: Any, part: Part, rows: Tensor, batch: int, held: Part) -> float:
    """The held-out loss after the same rows at a batch, from the weights and the optimizer's state of a place."""
    own = copy.deepcopy(model)
    stepper = make_optimizer("adam", own.parameters(), RATE)
    stepper.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    set_rate(stepper, batch)
    for chunk in rows.split(batch):
        step(own, stepper, part, chunk, 1)
    return evaluate(own, held)[1]


def set_rate(optimizer: Any, batch: int) -> None:
    """The rate at a batch, by the rule of Adam."""
    optimizer.param_groups[0]["lr"] = scaled(RATE, BATCH, batch, "sqrt")


def step(model: nn.Module, optimizer: Any, part: Part, rows: Tensor, parts: int) -> tuple[float, float]:
    """One step; the squared norms of ``gradient``."""
    norms = gradient(model, part, rows, parts)
    optimizer.step()
    return norms


if __name__ == "__main__":
    main()
