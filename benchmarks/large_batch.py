"""Accuracy of a batch 32 times the small one in equal epochs: LARS and LAMB beside Nesterov SGD and AdamW, equally tuned.

    python benchmarks/large_batch.py --task lenet --data DIR --out FILE.csv

Every optimizer gets the same number of trials at each batch. Trials are learning rates in factors of two. They begin at a guess
and go to better ones, judged on samples that are neither trained nor tested on; if all runs diverge, they go down. The best
rate then runs with more seeds; the first of these is the trial itself. All rates warm up over a tenth of the steps and fall
linearly to zero. Decay is 5e-4 for SGD and LARS, 0.01 for AdamW and LAMB. At the large batch, with the rates chosen, eight
workers also compress their gradients. They are threads of one process that take turns, by the code of worker processes. The
image networks multiply in bf16. One row a run, added at once. Rows that the file has are not run again, so an interrupted
series goes on.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from accuracy import OPTIONS
from critical_batch import finished
from large_tasks import TASKS, Data, Part, Task, batches, evaluate, loss_of, read, say
from replica import Replica
from rows import append
from torch import Tensor, nn

from paceline import LAMB, LARS, codecs
from paceline.strategy import GradientExchange
from paceline.strategy.recipe import Recipe
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup, LocalWire
from paceline.training.runs.schedules import scheduler

SMALL, LARGE = 128, 4096
WORKERS = 8
TRIALS = 4
WARMUP = 0.1
Parameters = Iterable[tuple[str, nn.Parameter]]
MAKE: dict[str, Callable[[Parameters, float], torch.optim.Optimizer]] = {
    "nesterov": lambda named, lr: torch.optim.SGD([p for _, p in named], lr, 0.9, weight_decay=5e-4, nesterov=True),
    "adamw": lambda named, lr: torch.optim.AdamW([p for _, p in named], lr, weight_decay=0.01),
    # With the paper's 0.001 the rates would be near 10, too large for the biases, which have no ratio.
    "lars": lambda named, lr: LARS(named, lr, 0.9, 5e-4, trust_coefficient=0.02),
    "lamb": lambda named, lr: LAMB(named, lr, weight_decay=0.01),
}
CONFIGS = (("nesterov", SMALL), ("adamw", SMALL), ("nesterov", LARGE), ("adamw", LARGE), ("lars", LARGE), ("lamb", LARGE))
GUESSES = {
    "lenet": (0.02, 0.001, 0.05, 0.004, 0.4, 0.02),
    "cifar": (0.02, 0.001, 0.2, 0.004, 0.4, 0.02),
    "characters": (0.1, 0.001, 0.4, 0.004, 0.4, 0.01),
    "digits": (0.02, 0.001, 0.02, 0.001, 0.1, 0.01),
}
"""Rates of the first trial, one for each of CONFIGS: by eye from short runs, those at the large batch about 4 to 30 times
those at the small one. Where an end of a search is best, the summary says so."""
EPOCHS = {"lenet": 10, "cifar": 5, "characters": 4, "digits": 1}
MIXED = ("lenet", "cifar", "digits")
"""Tasks whose networks multiply in bf16."""
COMPRESSED = ("terngrad", "inceptionn-scaled")
COLUMNS = (
    "task",
    "optimizer",
    "batch",
    "compression",
    "workers",
    "seed",
    "lr",
    "epochs",
    "steps",
    "precision",
    "trial",
    "tune_accuracy",
    "tune_loss",
    "test_accuracy",
    "test_loss",
    "skipped_steps",
    "nonfinite_steps",
    "seconds",
)


class Mixed(nn.Module):
    """The same network with products in bf16 and weights in fp32: faster where the processor has bf16."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Logits in fp32."""
        with torch.autocast("cpu", torch.bfloat16):
            out: Tensor = self.network(x)
        return out.float()


@dataclass(frozen=True)
class Case:
    """What makes two runs the same."""

    task: str
    optimizer: str
    batch: int
    compression: str
    workers: int
    seed: int
    lr: float
    epochs: int


class Study:
    """The runs of one task: those of the file, and those that are missing."""

    def __init__(self, task: Task, data: Data, epochs: int, out: Path) -> None:
        self.task, self.data, self.epochs, self.out = task, data, epochs, out
        kinds = {"batch": int, "workers": int, "seed": int, "lr": float, "epochs": int}
        self.rows = {Case(**{k: kinds.get(k, str)(r[k]) for k in Case.__dataclass_fields__}): r for r in finished(out)}

    def row(self, optimizer: str, batch: int, seed: int, lr: float, compression: str = "dense", trial: bool = False) -> Any:
        """The run's row, from the file or from a run now."""
        workers = 1 if compression == "dense" else WORKERS
        case = Case(self.task.name, optimizer, batch, compression, workers, seed, float(f"{lr:.4g}"), self.epochs)
        if case not in self.rows:
            start = time.perf_counter()
            fresh = {**vars(case), **train(case, self.task, self.data), "trial": int(trial)}
            fresh["seconds"] = round(time.perf_counter() - start, 1)
            append(self.out, COLUMNS, fresh)
            say({k: fresh[k] for k in COLUMNS[1:]})
            self.rows[case] = fresh
        return self.rows[case]

    def tuned(self, optimizer: str, batch: int, guess: float, trials: int) -> float:
        """The best rate of ``trials`` runs: uphill in factors of two, then of the square root of two around the best."""
        scores: dict[float, float] = {}
        factor, rate = 2.0, guess
        while True:
            scores[rate] = self.score(self.row(optimizer, batch, 0, rate, trial=True))
            best = max(scores, key=lambda r: scores[r])
            if len(scores) == trials:
                return best
            near = [x for x in (best * factor, best / factor) if not any(abs(x / r - 1) < 0.01 for r in scores)]
            if scores[best] == -math.inf:
                near = [min(scores) / factor]
            if not near:
                factor = math.sqrt(factor)
                near = [best * factor]
            rate = float(f"{near[0]:.4g}")

    def score(self, row: Any) -> float:
        """What tuning makes large: accuracy on the samples for it, for characters their loss with a minus."""
        value = -float(row["tune_loss"]) if self.task.by_loss else float(row["tune_accuracy"])
        return value if math.isfinite(value) else -math.inf


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(TASKS), required=True)
    parser.add_argument("--data", default="", help="directory of the data set")
    parser.add_argument("--epochs", type=int)
    # Processes with other optimizers can share the file.
    parser.add_argument("--only", nargs="+", choices=list(MAKE), default=list(MAKE), help="optimizers")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--large", type=int, default=LARGE, help="the large batch")
    parser.add_argument("--compressed-seeds", type=int, help="default --seeds")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    codecs.set_threads(1)
    task = TASKS[options.task]
    study = Study(task, read(task, options.data), options.epochs or EPOCHS[task.name], options.out)
    best = {}
    for (optimizer, batch), guess in zip(CONFIGS, GUESSES[task.name], strict=True):
        if optimizer not in options.only:
            continue
        size = batch if batch == SMALL else options.large
        best[optimizer, size] = study.tuned(optimizer, size, guess, options.trials)
    compressed = options.seeds if options.compressed_seeds is None else options.compressed_seeds
    for seed in range(max(options.seeds, compressed)):
        for (optimizer, size), rate in best.items():
            if seed < options.seeds:
                study.row(optimizer, size, seed, rate)
            for compression in COMPRESSED if size == options.large and seed < compressed else ():
                study.row(optimizer, size, seed, rate, compression)


def train(case: Case, task: Task, data: Data) -> dict[str, Any]:
    """From first to last step; what the row says of it. A run whose loss is not finite ends there."""
    model = task.model(case.seed)
    if case.task in MIXED:
        model = Mixed(model)
    if case.compression == "dense":
        outcome = work(case, task, data, model, None)
    else:
        outcomes = LocalGroup(case.workers).run(lambda wire: work(case, task, data, model, wire))
        if len({each["digest"] for each in outcomes}) != 1:
            raise RuntimeError(f"{case}: the replicas differ")
        outcome = outcomes[0]
    return {k: v for k, v in outcome.items() if k != "digest"}


def work(case: Case, task: Task, data: Data, start: nn.Module, wire: LocalWire | None) -> dict[str, Any]:
    """All of the run, or one worker's part; rank 0 then looks at what was held out."""
    torch.set_num_threads(1)
    model, replica = start, None
    if wire is not None:
        given = OPTIONS.get(case.compression, {})
        exchange = GradientExchange(case.compression, options=given)
        replica = Replica(copy.deepcopy(start), exchange, wire, case.seed)
        model = replica.model
    steps = case.epochs * (len(data.train) // case.batch)
    optimizer = MAKE[case.optimizer](model.named_parameters(), case.lr)
    warmup = round(WARMUP * steps)
    schedule = scheduler(
        optimizer, Recipe(optimizer=case.optimizer, lr=case.lr, total_steps=steps, warmup_steps=warmup, power=1.0)
    )
    finite = True
    for _, mine in zip(range(steps), batches(len(data.train), case.batch, case.seed), strict=False):
        if replica is None or wire is None:
            loss = accumulate(model, data.train, mine, task.piece)
        else:
            share = mine.chunk(case.workers)[wire.rank]
            loss = replica.gradients(data.train.x[share], data.train.y[share])
            replica.exchange()
        finite = math.isfinite(loss)
        if replica is None and not finite:
            break
        optimizer.step()
        schedule.step()
    outcome: dict[str, Any] = {
        "steps": steps,
        "precision": "bf16" if case.task in MIXED else "fp32",
        "skipped_steps": int(getattr(optimizer, "skipped_steps", 0)),
        "nonfinite_steps": replica.nonfinite_steps if replica else 0,
        "digest": replica.digest() if replica else "",
    }
    if wire is None or wire.rank == 0:
        for name, part in (("tune", data.tune), ("test", data.test)):
            score, loss = evaluate(model, part) if finite else (0.0, math.inf)
            outcome |= {f"{name}_accuracy": round(score, 5), f"{name}_loss": round(loss, 5)}
    return outcome


def accumulate(model: nn.Module, part: Part, rows: torch.Tensor, piece: int) -> float:
    """The mean gradient of ``rows`` into ``.grad``, piece by piece; the loss of the last piece."""
    model.zero_grad(set_to_none=True)
    loss = torch.zeros(())
    for chunk in rows.split(piece):
        loss = loss_of(model, Part(part.x[chunk], part.y[chunk]))
        (loss * (len(chunk) / len(rows))).backward()
    return float(loss.detach())


if __name__ == "__main__":
    main()
