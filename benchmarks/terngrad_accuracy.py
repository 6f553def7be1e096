"""Accuracy of TernGrad beside dense in equal epochs: LeNet-5, total batch 64, three optimizers, 2, 4 and 8 workers.

    python benchmarks/terngrad_accuracy.py --data digits --seeds 5 --epochs 15 --out RESULTS/terngrad_accuracy_digits.csv
    python benchmarks/terngrad_accuracy.py --data mnist:DIR --seeds 1 --epochs 5 --out RESULTS/terngrad_accuracy_mnist.csv

RESULTS is benchmarks/results. One row a run. Rows that the file already has are not run again. The learning rate falls
linearly to zero, for both alike.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from rows import append

from paceline.strategy import Strategy
from paceline.training.attach.attach import attach, wrap
from paceline.training.runs.data import load
from paceline.training.runs.launcher import run_workers
from paceline.training.runs.loop import Trainer, make_optimizer
from paceline.training.runs.starting_model import build_model

BATCH = 64
# Not tuned, but for sgd on MNIST: at 0.1 five epochs left dense itself at 98.95 %.
RATES = {
    "digits": {"sgd": 0.1, "momentum": 0.02, "adam": 0.001},
    "mnist": {"sgd": 0.35, "momentum": 0.02, "adam": 0.001},
}
OPTIMIZERS = ("momentum", "adam", "sgd")
COLUMNS = (
    "data",
    "workers",
    "optimizer",
    "compression",
    "seed",
    "epochs",
    "lr",
    "accuracy",
    "loss",
    "nonfinite_steps",
    "seconds",
)


@dataclass(frozen=True)
class Case:
    """One run."""

    workers: int
    optimizer: str
    compression: str
    seed: int


def main() -> None:
    """Parse, then run what is missing, one launch for each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--optimizers", nargs="+", default=list(OPTIMIZERS))
    parser.add_argument("--compressions", nargs="+", default=["dense", "terngrad"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    for workers in options.workers:
        rest = [*sys.argv[1:], "--workers", str(workers), "--worker"]
        run_workers([__file__, *rest], workers)


def work(options: argparse.Namespace) -> None:
    """One rank: every case of this number of workers that the file does not have."""
    dist.init_process_group("gloo")
    data = load(options.data)
    done = finished(options.out)
    dist.barrier()
    for seed, optimizer, compression in itertools.product(range(options.seeds), options.optimizers, options.compressions):
        case = Case(dist.get_world_size(), optimizer, compression, seed)
        if (data.name, case) in done:
            continue
        row = {
            "data": data.name,
            **vars(case),
            "epochs": options.epochs,
            "lr": RATES[data.name][optimizer],
            **train(case, data, options.epochs),
        }
        if dist.get_rank() == 0:
            append(options.out, COLUMNS, row)
            print(f"{data.name} {case}: {100 * float(row['accuracy']):.2f} %", file=sys.stderr, flush=True)
    dist.destroy_process_group()


def train(case: Case, data, epochs: int) -> dict[str, float | int]:
    """Accuracy after ``epochs``; the replicas are compared after each."""
    strategy = Strategy.of(
        world_size=case.workers,
        global_batch_size=BATCH,
        compression=case.compression,
        optimizer=case.optimizer,
        first_bucket_bytes=25 << 20,
        bucket_bytes=25 << 20,
    )
    start = time.perf_counter()
    model = wrap(build_model("lenet5", case.seed), strategy)
    hook = attach(model, case.compression, seed=case.seed)
    optimizer = make_optimizer(case.optimizer, model.parameters(), RATES[data.name][case.optimizer])
    trainer = Trainer(model, hook, optimizer, data, strategy, case.seed, torch.device("cpu"))
    steps = epochs * trainer.steps_per_epoch
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    trainer.settle_buckets()
    for epoch in range(epochs):
        loss = trainer.train_epoch(epoch, lambda _: decay.step())
        trainer.check_replicas()
    accuracy, _ = trainer.evaluate()
    return {
        "accuracy": round(accuracy, 5),
        "loss": round(loss, 5),
        "nonfinite_steps": hook.meter.nonfinite_steps,
        "seconds": round(time.perf_counter() - start, 1),
    }


def finished(path: Path) -> set[tuple[str, Case]]:
    """The cases in the file."""
    if not path.exists():
        return set()
    with path.open() as file:
        return {
            (row["data"], Case(int(row["workers"]), row["optimizer"], row["compression"], int(row["seed"])))
            for row in csv.DictReader(file)
        }


if __name__ == "__main__":
    main()
