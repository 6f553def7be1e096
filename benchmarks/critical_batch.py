"""Steps to a target against the batch, and what the gradient noise scale of a single run says of it.

    python benchmarks/critical_batch.py --task lenet --data DIR --out FILE.csv

At each batch the learning rate is searched in factors of two, until both neighbours of the best rate take more samples. The
rate is constant. A run ends when the held-out loss first falls below the target, or when it has taken a quarter more samples
than the best run at its batch. Where the batch is split into parts, the run also takes the squared norms of the parts'
gradients and of their mean: what data-parallel workers have. One row a run, added at once. Rows that the file has are not run
again.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from large_tasks import TASKS, Data, Part, Task, batches, evaluate, loss_of, read, say
from rows import append
from torch import nn

from paceline.prediction.learning.noise_scale import NoiseScale
from paceline.training.runs.loop import make_optimizer


@dataclass(frozen=True)
class Sweep:
    """What is swept over.

    Attributes:
        target: held-out loss, nats. ``lr``: where the search begins at the first batch; from there it begins at the best of the
            batch before.
        epochs: at most.
    """

    optimizer: str
    target: float
    lr: float
    batches: tuple[int, ...]
    epochs: float = 20


SWEEPS = {
    "lenet": Sweep("adam", 0.45, 0.001, (64, 256, 1024, 4096)),
    "cifar": Sweep("adam", 1.45, 0.001, (64, 256, 1024, 4096)),
    "characters": Sweep("adam", 2.1, 0.002, (128, 512, 2048, 8192, 32768)),
    "digits": Sweep("momentum", 0.7, 0.02, (64, 256)),
}
COLUMNS = (
    "task",
    "optimizer",
    "target",
    "batch",
    "seed",
    "lr",
    "reached",
    "samples",
    "steps",
    "loss",
    "local_batch",
    "noise",
    "seconds",
)
GROWTH = 1.08
"""Between two looks at the held-out loss, in steps."""
FIRST_LOOK = 4096
"""Samples before it, in steps of several."""
LEAST_RATE = 1e-6
"""Where a search that never reaches its target gives up."""
LEAST_SAMPLES = 32
"""Of a part whose gradient's norm is taken."""


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(TASKS), required=True)
    parser.add_argument("--data", default="", help="directory of the data set")
    parser.add_argument("--batches", type=int, nargs="+")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    task, sweep = TASKS[options.task], SWEEPS[options.task]
    data = read(task, options.data)
    for seed in range(options.seeds):
        lr = sweep.lr
        for batch in options.batches or sweep.batches:
            lr = search(task, sweep, data, batch, seed, lr, options.out)


def search(task: Task, sweep: Sweep, data: Data, batch: int, seed: int, lr: float, out: Path) -> float:
    """The rate that takes the fewest samples at ``batch``: uphill in factors of two; downhill while none reaches the target."""
    done = {float(r["lr"]): r for r in finished(out) if _same(r, task, sweep, batch, seed)}
    samples: dict[float, float] = {}
    rate = lr
    while True:
        if rate not in done:
            done[rate] = run(task, sweep, data, batch, seed, rate, limit=1.25 * min(samples.values(), default=math.inf))
            append(out, COLUMNS, done[rate])
            say({k: v for k, v in done[rate].items() if k != "noise"})
        reached = str(done[rate]["reached"]) == "True"
        samples[rate] = float(done[rate]["samples"]) if reached else math.inf
        best = min(samples, key=lambda r: samples[r])
        near = (2 * best, best / 2) if math.isfinite(samples[best]) else (min(samples) / 2,)
        untried = [x for x in (float(f"{x:.4g}") for x in near) if x not in samples]
        if not untried or untried[0] < LEAST_RATE:
            return best
        rate = untried[0]


def _same(row: dict[str, str], task: Task, sweep: Sweep, batch: int, seed: int) -> bool:
    given = (row["task"], row["optimizer"], float(row["target"]), int(row["batch"]), int(row["seed"]))
    return given == (task.name, sweep.optimizer, sweep.target, batch, seed)


def finished(path: Path) -> list[dict[str, str]]:
    """The rows of the file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run(task: Task, sweep: Sweep, data: Data, batch: int, seed: int, lr: float, limit: float) -> dict[str, Any]:
    """Train until the target, ``limit`` samples or the sweep's epochs; the row."""
    start = time.perf_counter()
    model = task.model(seed)
    optimizer = make_optimizer(sweep.optimizer, model.parameters(), lr)
    glance = data.tune.first(task.glance)
    parts = max(batch // task.piece, min(4, batch // LEAST_SAMPLES))
    scale = NoiseScale(parts, decay=0.0) if parts > 1 else None
    limit = min(limit, sweep.epochs * len(data.train))
    before, loss, step, look = (0, math.inf), math.inf, 0, max(1, FIRST_LOOK // batch)
    noise: list[tuple[int, float, float]] = []
    signal_sum = noise_sum = 0.0
    reached = False
    for mine in batches(len(data.train), batch, seed):
        local, mean = gradient(model, data.train, mine, max(1, parts))
        optimizer.step()
        step += 1
        if scale is not None:
            scale.add(local, mean)
            signal_sum, noise_sum = signal_sum + scale.signal, noise_sum + scale.noise
        if step < look and step * batch < limit:
            continue
        look = max(step + 1, math.ceil(step * GROWTH))
        loss = evaluate(model, glance)[1]
        noise.append((step, float(f"{signal_sum:.4g}"), float(f"{noise_sum:.4g}")))
        reached = loss <= sweep.target
        if reached or not loss < 20 or step * batch >= limit:
            break
        before = step, loss
    share = (before[1] - sweep.target) / (before[1] - loss) if reached and math.isfinite(before[1]) else 1.0
    samples = (before[0] + share * (step - before[0])) * batch
    return {
        "task": task.name,
        "optimizer": sweep.optimizer,
        "target": sweep.target,
        "batch": batch,
        "seed": seed,
        "lr": lr,
        "reached": reached,
        "samples": round(samples),
        "steps": round(samples / batch, 2),
        "loss": round(loss, 4),
        "local_batch": batch // parts if scale else "",
        "noise": json.dumps(noise) if scale else "",
        "seconds": round(time.perf_counter() - start, 1),
    }


def gradient(model: nn.Module, part: Part, rows: torch.Tensor, parts: int) -> tuple[float, float]:
    """The mean gradient of ``rows`` into ``.grad``. Mean squared norm of the parts' gradients, and that of their mean."""
    weights = list(model.parameters())
    for p in weights:
        p.grad = None
    local = 0.0
    total: list[torch.Tensor] = []
    for chunk in rows.chunk(parts):
        gradients = torch.autograd.grad(loss_of(model, Part(part.x[chunk], part.y[chunk])), weights)
        if parts > 1:
            local += _square(gradients) / parts
        if total:
            torch._foreach_add_(total, gradients)
        else:
            total = list(gradients)
    if parts > 1:
        torch._foreach_div_(total, parts)
    for p, g in zip(weights, total, strict=True):
        p.grad = g
    return local, _square(total) if parts > 1 else 0.0


def _square(tensors: Any) -> float:
    return float(torch.stack(torch._foreach_norm(tensors)).double().square().sum())


if __name__ == "__main__":
    main()
