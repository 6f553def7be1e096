"""Accuracy where a sharded model gathers its weights in fewer bits: fp32, bfloat16 and int8 blocks in equal epochs.

    python benchmarks/gather_accuracy.py --data digits --epochs 30 --batch 64 --lr 0.02 --out RESULTS/gather_accuracy.csv
    python benchmarks/gather_accuracy.py --data fashion-mnist:DIR --out RESULTS/gather_accuracy.csv

RESULTS is benchmarks/results. One row a run: LeNet-5 under FSDP2 (`zero3`), a process a rank, SGD with Nesterov momentum, a
rate that falls linearly to zero. Runs of one seed start from the same weights and see the same samples; gradients are dense.
Each owner keeps its weights in fp32, so there are two accuracies: `accuracy` of these, `accuracy_gathered` of the weights as
they travel. Rows that the file already has are not run again. --summary measures nothing: it prints the table of the file.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rows import append, read
from torch import nn
from torch.nn.functional import cross_entropy

import paceline
from paceline.strategy import Strategy
from paceline.training.runs.data import Dataset, load
from paceline.training.runs.launcher import run_workers
from paceline.training.runs.shard import shard
from paceline.training.runs.starting_model import build_model

MODEL, MOMENTUM, BUCKET_BYTES = "lenet5", 0.9, 1 << 16  # a unit for each layer
BITS = (0, 16, 8)
COLUMNS = (
    "data",
    "model",
    "workers",
    "gather_bits",
    "seed",
    "epochs",
    "batch",
    "lr",
    "accuracy",
    "accuracy_gathered",
    "loss",
    "step_bytes",
    "seconds",
)
CASE = ("data", "workers", "gather_bits", "seed", "epochs", "batch", "lr")
"""Columns that tell runs apart."""


def main() -> None:
    """Parse, then run what is missing in one launch, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--bits", type=int, nargs="+", default=list(BITS), choices=BITS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=256, help="samples of a step over all workers")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.summary:
        print(table(read(options.out)))
    elif options.worker:
        work(options)
    else:
        run_workers([__file__, *sys.argv[1:], "--worker"], options.workers)
        print(table(read(options.out)))


def work(options: argparse.Namespace) -> None:
    """One rank: every case that the file does not have."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    data = load(options.data)
    done = {tuple(row[name] for name in CASE) for row in read(options.out)} if options.out.exists() else set()
    dist.barrier()
    for seed, bits in itertools.product(range(options.seeds), options.bits):
        case = {
            "data": data.name,
            "workers": dist.get_world_size(),
            "gather_bits": bits,
            "seed": seed,
            "epochs": options.epochs,
            "batch": options.batch,
            "lr": options.lr,
        }
        if tuple(case.values()) in done:
            continue
        found = train(data, bits, seed, options)
        if dist.get_rank() == 0:
            append(options.out, COLUMNS, {**case, "model": MODEL, **found})
            print(f"{data.name}, {bits or 32} bits, seed {seed}: {100 * found['accuracy']:.2f} %", file=sys.stderr, flush=True)
    dist.destroy_process_group()


def train(data: Dataset, bits: int, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """Accuracies after all epochs, the mean loss of the last, bytes that a rank sends in a step."""
    workers, start = dist.get_world_size(), time.perf_counter()
    strategy = Strategy.of(world_size=workers, global_batch_size=options.batch, sharding="zero3", bucket_bytes=BUCKET_BYTES)
    model = shard(build_model(MODEL, seed), strategy)
    hook = paceline.attach(model, "dense", seed=seed, gather_bits=bits)
    optimizer = torch.optim.SGD(model.parameters(), options.lr, MOMENTUM, nesterov=True)
    steps = options.epochs * (len(data.train_y) // options.batch)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    losses: list[float] = []
    sent = 0
    for x, y in batches(data, seed, options.epochs, strategy):
        hook.meter.begin_step()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        rate.step()
        losses.append(float(loss.detach()))
        sent = hook.meter.sent_bytes
    gathered = accuracy(model, data)
    whole = build_model(MODEL, seed)
    whole.load_state_dict({name: value.full_tensor() for name, value in model.state_dict().items()})  # type: ignore[union-attr]
    return {
        "accuracy": round(accuracy(whole, data), 5),
        "accuracy_gathered": round(gathered, 5),
        "loss": round(statistics.mean(losses[-(steps // options.epochs) :]), 5),
        "step_bytes": sent,
        "seconds": round(time.perf_counter() - start, 1),
    }


def batches(data: Dataset, seed: int, epochs: int, strategy: Strategy) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's samples of every step: the same for all runs of a seed."""
    size, own, generator = strategy.global_batch_size, strategy.micro_batch_size, torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(data.train_y), generator=generator)
        for at in range(0, len(order) - size + 1, size):
            mine = order[at + dist.get_rank() * own :][:own]
            yield data.train_x[mine], data.train_y[mine]


@torch.no_grad()
def accuracy(model: nn.Module, data: Dataset) -> float:
    """On the samples that are held out. Every rank calls it, since a sharded model gathers its weights."""
    model.eval()
    out = torch.cat([model(x) for x in data.test_x.split(1000)])
    return float((out.argmax(1) == data.test_y).float().mean())


def table(found: Sequence[dict[str, Any]]) -> str:
    """Mean and spread over seeds, and the mean difference to fp32 of the same seeds, in points."""
    lines = ["| data | bits | seeds | accuracy | as gathered | least, most | beside fp32 |", "|---|---|---|---|---|---|---|"]
    groups: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = {}
    for row in found:
        groups.setdefault((row["data"], row["epochs"], row["gather_bits"]), {})[row["seed"]] = row
    for (data, epochs, bits), of_seed in groups.items():
        own = [100 * row["accuracy"] for row in of_seed.values()]
        travelled = statistics.mean(100 * row["accuracy_gathered"] for row in of_seed.values())
        usual = groups.get((data, epochs, 0), {})
        apart = [100 * (row["accuracy"] - usual[seed]["accuracy"]) for seed, row in of_seed.items() if seed in usual]
        beside = f"{statistics.mean(apart):+.2f}" if bits and apart else ""
        cells = (data, bits or 32, len(own), f"{statistics.mean(own):.2f} %", f"{travelled:.2f} %")
        lines.append("| " + " | ".join(map(str, (*cells, f"{min(own):.2f}, {max(own):.2f}", beside))) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
