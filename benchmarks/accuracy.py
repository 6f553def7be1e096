"""Accuracy in equal epochs, every compression beside dense: momentum SGD, 16 samples a worker, 4 and 8 workers.

    python benchmarks/accuracy.py --network lenet5 --data fashion-mnist:DIR --out FILE.csv
    python benchmarks/accuracy.py --network cifar10-terngrad --data cifar10:DIR --train 20000 --out FILE.csv

The default is one epoch. The workers are threads of one process and take turns; what they send each other is what worker
processes would send, by the same code. For one seed all compressions start from the same weights and see the same samples in
the same order. The rate was chosen for dense alone. It grows with the number of workers, after a warm-up over a tenth of the
steps (Goyal et al. 2017, section 2), and falls linearly to zero.

One row a run, added at once, seed by seed. Rows that the file has are not run again, so an interrupted series goes on.
"""

from __future__ import annotations

import argparse
import copy
import csv
import itertools
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from replica import Replica, accuracy, quick
from rows import append

from paceline import codecs
from paceline.strategy import COMPRESSIONS, GradientExchange
from paceline.training.attach.hooks.powersgd import START
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup, LocalWire
from paceline.training.runs.data import Dataset, load
from paceline.training.runs.loop import make_optimizer
from paceline.training.runs.starting_model import build_model, mixed_seed

RATES = {"lenet5": 0.015, "cifar10-terngrad": 0.02}
"""For 64 samples a step, tried on dense alone (seed 0). LeNet-5: half of 0.03, whose double diverges with eight workers.
CIFAR network, 10,000 images, one epoch, four workers: 0.01 gave 36.5 %, 0.02 41.6 %. ``--rates`` tries others.
"""
OPTIONS: dict[str, dict[str, Any]] = {"inceptionn": {"bound": 2.0**-10}, "inceptionn-scaled": {"bound": 2.0**-6}}
COLUMNS = (
    "network",
    "data",
    "samples",
    "workers",
    "compression",
    "exchange",
    "options",
    "seed",
    "epochs",
    "batch",
    "lr",
    "accuracy",
    "test_loss",
    "train_loss",
    "steps",
    "nonfinite_steps",
    "sent_bytes",
    "seconds",
    "cpu_seconds",
)
ORDER = ("dense", "bf16", "terngrad", "int8", "inceptionn-scaled", "inceptionn", "int4", "sign", "topk", "powersgd")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run; what tells its row from the others."""

    network: str
    data: str
    samples: int
    workers: int
    compression: str
    seed: int
    epochs: int
    batch: int
    lr: float


def main() -> None:
    """Parse, then run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=list(RATES), default="lenet5")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--train", type=int, help="use this many training samples, drawn once for all runs")
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--only", nargs="+", choices=ORDER, default=list(ORDER), metavar="COMPRESSION")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--micro-batch", type=int, default=16, help="samples of one worker in a step")
    parser.add_argument("--rates", type=float, nargs="+", help="learning rates for 64 samples a step, in place of the chosen")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    codecs.set_threads(1)
    data = subset(load(options.data), options.train)
    rates = options.rates or [RATES[options.network]]
    for seed, compression, workers, rate in itertools.product(range(options.seeds), options.only, options.workers, rates):
        batch = workers * options.micro_batch
        case = Case(
            network=options.network,
            data=data.name,
            samples=len(data.train_y),
            workers=workers,
            compression=compression,
            seed=seed,
            epochs=options.epochs,
            batch=batch,
            lr=round(rate * batch / 64, 6),
        )
        if case in finished(options.out):
            continue
        row = run(case, data)
        append(options.out, COLUMNS, row)
        print(f"{case}: {100 * row['accuracy']:.2f} %, {row['cpu_seconds']} s", file=sys.stderr, flush=True)


def subset(data: Dataset, count: int | None) -> Dataset:
    """The same ``count`` training samples for every run."""
    if count is None:
        return data
    chosen = torch.randperm(len(data.train_y), generator=torch.Generator().manual_seed(2017))[:count]
    return Dataset(data.name, data.train_x[chosen], data.train_y[chosen], data.test_x, data.test_y)


def finished(path: Path) -> set[Case]:
    """The cases in the file."""
    if not path.exists():
        return set()
    kinds = {"samples": int, "workers": int, "seed": int, "epochs": int, "batch": int, "lr": float}
    with path.open() as file:
        return {Case(**{k: kinds.get(k, str)(row[k]) for k in Case.__dataclass_fields__}) for row in csv.DictReader(file)}


def run(case: Case, data: Dataset) -> dict[str, Any]:
    """Train all workers; the row. Raises RuntimeError when the replicas do not hold the same weights in the end."""
    start, cpu = time.perf_counter(), time.process_time()
    model = build_model(case.network, case.seed)
    outcomes = LocalGroup(case.workers).run(lambda wire: work(wire, case, data, model))
    if len({o["digest"] for o in outcomes}) != 1:
        raise RuntimeError(f"{case}: the replicas differ")
    first = outcomes[0]
    return {
        **vars(case),
        **{k: first[k] for k in ("exchange", "options", "steps", "nonfinite_steps", "accuracy", "test_loss")},
        "train_loss": round(sum(o["loss"] for o in outcomes) / case.workers, 5),
        "sent_bytes": max(o["sent_bytes"] for o in outcomes),
        "seconds": round(time.perf_counter() - start, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }


def schedule(step: int, steps: int) -> float:
    """Share of the learning rate in a step: up in the first tenth, then down to zero, both in a straight line."""
    warm = max(1, steps // 10)
    return min((step + 1) / warm, max(0.0, (steps - step) / (steps - warm + 1)))


def work(wire: LocalWire, case: Case, data: Dataset, start: Any) -> dict[str, Any]:
    """One worker from first to last step; rank 0 then looks at the test set."""
    torch.set_num_threads(1)
    compression = COMPRESSIONS[case.compression]
    given = OPTIONS.get(case.compression, {})
    exchange = GradientExchange(case.compression, options=given)
    replica = Replica(quick(copy.deepcopy(start)), exchange, wire, case.seed)
    optimizer = make_optimizer("momentum", replica.model.parameters(), case.lr)
    micro_batch, per_epoch = case.batch // case.workers, case.samples // case.batch
    steps = case.epochs * per_epoch
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule(step, steps))
    loss, sent = 0.0, 0
    for epoch in range(case.epochs):
        order = torch.randperm(case.samples, generator=torch.Generator().manual_seed(mixed_seed(case.seed, epoch)))
        loss = 0.0
        for step in range(per_epoch):
            mine = order[step * case.batch + wire.rank * micro_batch :][:micro_batch]
            wire.meter.begin_step()
            loss += replica.gradients(data.train_x[mine], data.train_y[mine])
            replica.exchange()
            if case.compression != "powersgd" or epoch * per_epoch + step >= START:  # its first steps are dense
                sent = max(sent, wire.meter.sent_bytes)
            optimizer.step()
            decay.step()
    score, test_loss = accuracy(replica.model, data.test_x, data.test_y) if wire.rank == 0 else (0.0, 0.0)
    described = {k: v for k, v in compression.configured(given).option_values.items() if k not in ("ratio", "momentum")}
    return {
        "accuracy": round(score, 5),
        "test_loss": round(test_loss, 5),
        "loss": loss / per_epoch,
        "steps": steps,
        "nonfinite_steps": replica.nonfinite_steps,
        "exchange": exchange.exchange.name,
        "options": json.dumps(described),
        "sent_bytes": sent,
        "digest": replica.digest(),
    }


if __name__ == "__main__":
    main()
