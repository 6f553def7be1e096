"""What checkpoints cost training, at one a minute: the wait for the copy, and steps that are slower while it is written.

    python benchmarks/checkpoint_cost.py --out RESULTS/checkpoint_cost.csv

RESULTS is benchmarks/results. Real ranks train a network of so many parameters and save every few steps, as ``paceline train
--checkpoint-every`` does. A row has, of the rank that lost most, the median over the checkpoints: ``stall_s``, the wait;
``slower_s``, what the steps of a write took longer than the median of the others; and their sum's share of a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rows import append

COLUMNS = (
    *("parameters", "workers", "compression", "optimizer", "batch", "checkpoints", "step_s", "bytes"),
    *("stall_s", "write_s", "slower_s", "share_of_a_minute"),
)
GOAL = 0.03


def main() -> None:
    """Start the ranks and add a row for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, nargs="+", default=[1_000_000, 10_000_000, 60_000_000])
    parser.add_argument("--compression", nargs="+", default=["dense", "topk"])
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="samples of a rank")
    parser.add_argument("--checkpoints", type=int, default=5)
    parser.add_argument("--between", type=int, default=20, help="steps from a checkpoint that is written to the next")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    from paceline.training.launcher import run_workers

    for parameters in options.parameters:
        for compression in options.compression:
            with tempfile.TemporaryDirectory(dir=options.out.parent) as folder:  # on the disk of the results
                case = {"parameters": parameters, "compression": compression, "folder": folder}
                names = ("optimizer", "workers", "batch", "checkpoints", "between")
                case |= {name: getattr(options, name) for name in names}
                run_workers([__file__, "--rank", json.dumps(case)], options.workers)
                row: dict[str, Any] = json.loads((Path(folder) / "row.json").read_text())
            append(options.out, COLUMNS, {name: f"{v:.4g}" if isinstance(v, float) else v for name, v in row.items()})
            verdict = "within" if row["share_of_a_minute"] <= GOAL else "above"
            print(f"{parameters:,} parameters, {compression}: {row['share_of_a_minute']:.2%} of a minute, {verdict} 3 %")


def rank(case: dict[str, Any]) -> None:
    """One rank: train, save, and leave the row."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from paceline.hardware.probe import join_group
    from paceline.strategy import Strategy
    from paceline.training.attach import attach, wrap
    from paceline.training.checkpoint_writer import CheckpointWriter
    from paceline.training.data import Dataset
    from paceline.training.loop import Trainer, make_optimizer
    from paceline.training.run_state import own_state, shared_state
    from paceline.training.training_run import TrainingRun

    device = join_group()
    workers, me = dist.get_world_size(), dist.get_rank()
    strategy = Strategy.of(
        world_size=workers,
        global_batch_size=workers * case["batch"],
        compression=case["compression"],
        optimizer=case["optimizer"],
    )
    width = max(16, int((case["parameters"] / 3) ** 0.5))
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = wrap(nn.Sequential(*layers).to(device), strategy)
    x, y = torch.randn(1000 * strategy.global_batch_size // 100, width), torch.arange(10 * strategy.global_batch_size) % width
    hook = attach(model, strategy.gradient_exchange)
    optimizer = make_optimizer(strategy.optimizer, model.module.named_parameters(), 1e-4)
    trainer = Trainer(model, hook, optimizer, Dataset("noise", x, y, x[:8], y[:8]), strategy, 0, device)
    run = TrainingRun(model="m:f", data="m:f", strategy=strategy, out=case["folder"])
    writer = CheckpointWriter(run, me, workers, shared=True)
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
                shared = shared_state(trainer, []) if me == 0 else {}
                writer.save(0, len(writer.stalled_s) + 1, shared, own_state(trainer))
                begun = time.perf_counter()

    epoch = 0
    while len(slower) < case["checkpoints"] + 1:
        trainer.train_epoch(epoch, on_step)
        epoch += 1
    writer.finish()
    # The first has no earlier copy whose memory it could use; a run of a minute a checkpoint soon forgets it.
    stall, slow = statistics.median(writer.stalled_s[1:]), max(0.0, statistics.median(slower[1:]))
    mine = {"stall_s": stall, "slower_s": slow, "write_s": statistics.median(writes[1:]), "step_s": statistics.median(idle)}
    everyone: list[Any] = [None] * workers
    dist.all_gather_object(everyone, mine)
    if me == 0:
        worst = max(everyone, key=lambda one: one["stall_s"] + one["slower_s"])
        size = sum(path.stat().st_size for path in Path(case["folder"]).glob("**/*.pt")) // 2  # two generations
        row = {
            **{name: case[name] for name in ("workers", "compression", "optimizer", "batch", "checkpoints")},
            "parameters": sum(p.numel() for p in model.parameters()),
            "bytes": size,
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
