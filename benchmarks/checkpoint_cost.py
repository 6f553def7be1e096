"""What checkpoints cost training, at one a minute: the wait for the copy, and steps that are slower while it is written.

    python benchmarks/checkpoint_cost.py --out RESULTS/checkpoint_cost.csv

RESULTS is benchmarks/results. Real ranks train a network of so many parameters and save every few steps, as ``paceline train
--checkpoint-every`` does, with weights and optimizer state on every rank or shared out. A row has, of the rank that lost most,
the median over the checkpoints: ``stall_s``, the wait; ``slower_s``, what the steps of a write took longer than the median of
the others; and their sum's share of a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

from rows import append

COLUMNS = (
    *("parameters", "workers", "sharding", "compression", "optimizer", "batch", "checkpoints", "step_s", "bytes"),
    *("stall_s", "write_s", "slower_s", "share_of_a_minute"),
)
GOAL = 0.03


def main() -> None:
    """Start the ranks and add a row for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, nargs="+", default=[1_000_000, 10_000_000, 60_000_000])
    parser.add_argument("--sharding", nargs="+", default=["ddp", "zero1", "zero2", "zero3"])
    parser.add_argument("--compression", nargs="+", default=["dense", "topk"])
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="samples of a rank")
    parser.add_argument("--checkpoints", type=int, default=5)
    parser.add_argument("--between", type=int, default=20, help="steps from a checkpoint that is written to the next")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    from paceline.training.runs.launcher import run_workers

    for parameters, sharding, compression in product(options.parameters, options.sharding, options.compression):
        with tempfile.TemporaryDirectory(dir=options.out.parent) as folder:  # on the disk of the results
            case = {"parameters": parameters, "sharding": sharding, "compression": compression, "folder": folder}
            names = ("optimizer", "workers", "batch", "checkpoints", "between")
            case |= {name: getattr(options, name) for name in names}
            run_workers([__file__, "--rank", json.dumps(case)], options.workers)
            row: dict[str, Any] = json.loads((Path(folder) / "row.json").read_text())
        append(options.out, COLUMNS, {name: f"{v:.4g}" if isinstance(v, float) else v for name, v in row.items()})
        verdict = "within" if row["share_of_a_minute"] <= GOAL else "above"
        what = f"{parameters:,} parameters, {sharding}, {compression}"
        print(f"{what}: {row['share_of_a_minute']:.2%} of a minute, {verdict} 3 %", flush=True)


def rank(case: dict[str, Any]) -> None:
    """One rank: train, save, and leave the row."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from paceline.hardware.probe import join_group
    from paceline.strategy import Strategy
    from paceline.training.runs.checkpoints.checkpoint_writer import CheckpointWriter
    from paceline.training.runs.checkpoints.run_state import own_part, shared_state
    from paceline.training.runs.data import Dataset
    from paceline.training.runs.trainers import make_trainer
    from paceline.training.runs.training_run import TrainingRun

    device = join_group()
    workers, me = dist.get_world_size(), dist.get_rank()
    strategy = Strategy.of(
        world_size=workers,
        global_batch_size=workers * case["batch"],
        sharding=case["sharding"],
        compression=case["compression"],
        optimizer=case["optimizer"],
    )
    width = max(16, int((case["parameters"] / 3) ** 0.5))
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers).to(device)
    size = sum(p.numel() for p in model.parameters())
    x, y = torch.randn(1000 * strategy.global_batch_size // 100, width), torch.arange(10 * strategy.global_batch_size) % width
    run = TrainingRun(model="m:f", data="m:f", strategy=strategy, lr=1e-4, out=case["folder"])
    trainer, _ = make_trainer(run, model, Dataset("noise", x, y, x[:8], y[:8]), device)
    writer = CheckpointWriter(run, me, workers, shared=True)
    stalls: list[float] = []
    slower: list[float] = []
    writes: list[float] = []
    idle: list[float] = []
    begun, during, since = 0.0, list[float](), 0

    def on_step(number: int) -> None:
        nonlocal begun, since
        step = trainer.times.step[-1]
        if begun:
            during.append(step)
            flags = torch.tensor([float(writer.busy)])
            dist.all_reduce(flags, dist.ReduceOp.MAX)
            if not flags:
                writes.append(time.perf_counter() - begun)
                slower.append(sum(during) - len(during) * statistics.median(idle))
                begun, since = 0.0, 0
                during.clear()
        else:
            idle.append(step)
            since += 1
            if since >= case["between"]:
                start = time.perf_counter()
                shared = shared_state(trainer, []) if me == 0 else {}
                writer.save(0, len(stalls) + 1, shared, own_part(trainer))
                begun = time.perf_counter()
                stalls.append(begun - start)

    epoch = 0
    while len(slower) < case["checkpoints"] + 1:
        trainer.train_epoch(epoch, on_step)
        epoch += 1
    writer.finish()
    # The first has no earlier copy whose memory it could use; a run of a minute a checkpoint soon forgets it.
    stall, slow = statistics.median(stalls[1:]), max(0.0, statistics.median(slower[1:]))
    mine = {"stall_s": stall, "slower_s": slow, "write_s": statistics.median(writes[1:]), "step_s": statistics.median(idle)}
    everyone: list[Any] = [None] * workers
    dist.all_gather_object(everyone, mine)
    if me == 0:
        worst = max(everyone, key=lambda one: one["stall_s"] + one["slower_s"])
        written = sum(path.stat().st_size for path in Path(case["folder"]).glob("**/*.pt")) // 2  # two generations
        row = {
            **{name: case[name] for name in ("workers", "sharding", "compression", "optimizer", "batch", "checkpoints")},
            "parameters": size,
            "bytes": written,
            **worst,
            "share_of_a_minute": (worst["stall_s"] + worst["slower_s"]) / 60,
        }
        (Path(case["folder"]) / "row.json").write_text(json.dumps(row))
    dist.barrier()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank(json.loads(sys.argv[2]))
        sys.stdout.flush()
        os._exit(0)
    main()
