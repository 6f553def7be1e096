"""One rank of a real training of a sharded model, with paced compute. ``sharded_lab.py`` starts it on every host.

The network, the data, the gradients, the codec and the sockets are real. A sleep in every forward pass stands for the rest of
an accelerator's step, so that hosts of one machine work side by side. Rank 0 prints one JSON line a case.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from link_bytes import sent_bytes
from local_rank import Paced, batches
from rank_cases import run_cases
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import paceline
from paceline import models
from paceline.strategy import Strategy
from paceline.strategy.sharding import SHARDINGS
from paceline.training.runs.data import Dataset
from paceline.training.runs.shard import shard, unit_modules


def run(case: dict[str, Any], spec: dict[str, Any], data: Dataset) -> dict[str, Any]:
    """Train from the same weights; seconds and bytes of a step, and the last loss."""
    torch.manual_seed(spec["seed"])
    workers = dist.get_world_size()
    model: nn.Module = Paced(models.build(spec["model"]), spec["pace_s"])
    hook: Any = None
    if case["sharding"] == "alone":
        trained = by_itself(model, spec["bucket_bytes"], case["under"]) if case["under"] else model
    elif case["sharding"] == "ddp":
        trained = DistributedDataParallel(model)
        hook = paceline.attach(trained, case["compression"], exchange=case["exchange"], seed=spec["seed"])
    else:
        strategy = Strategy.of(
            world_size=workers,
            global_batch_size=workers,
            sharding=case["sharding"],
            shard_devices=case.get("shard_devices", 0),
            bucket_bytes=spec["bucket_bytes"],
        )
        trained = shard(model, strategy)
        bits = case.get("gather_bits", 0)
        hook = paceline.attach(trained, case["compression"], exchange=case["exchange"], seed=spec["seed"], gather_bits=bits)
    optimizer = torch.optim.SGD(trained.parameters(), spec["lr"], momentum=0.9)
    seconds: list[float] = []
    metered: list[int] = []
    before, loss = 0, torch.zeros(())
    dist.barrier()
    for number, (x, y) in enumerate(batches(data, spec)):
        if number == spec["warm"]:
            before = sent_bytes()
        start = time.perf_counter()
        if hook is not None:
            hook.meter.begin_step()
        loss = cross_entropy(trained(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number >= spec["warm"]:
            seconds.append(time.perf_counter() - start)
            metered.append(hook.meter.sent_bytes if hook is not None else 0)
    busiest = torch.tensor([(sent_bytes() - before) / len(seconds), max(metered)], dtype=torch.float64)
    dist.all_reduce(busiest, op=dist.ReduceOp.MAX)
    step = torch.tensor(statistics.median(seconds), dtype=torch.float64)
    dist.all_reduce(step, op=dist.ReduceOp.MAX)
    return {
        **case,
        "step_s": float(step),
        "step_low_s": sorted(seconds)[len(seconds) // 10],
        "step_high_s": sorted(seconds)[-1 - len(seconds) // 10],
        "socket_bytes": round(float(busiest[0])),
        "metered_bytes": int(busiest[1]),
        "loss": float(loss),
        "steps": len(seconds),
        "hop_s": hop_s() if case["sharding"] == "alone" else 0.0,
    }


def by_itself(model: nn.Module, bucket_bytes: int, sharding: str) -> nn.Module:
    """Shard a model over this rank alone, in the units of ``shard``: FSDP2's own work on the host, and no exchange."""
    alone = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("workers", "own"))["own"]
    for modules in unit_modules(model, bucket_bytes):
        whole = modules if len(modules) > 1 else modules[0]
        fully_shard(whole, mesh=alone, reshard_after_forward=SHARDINGS[sharding].gathers_again)
    return model


def hop_s(calls: int = 50) -> float:
    """Return the seconds of one message of a small all-gather, of which each rank waits for one after another."""
    mine, every = torch.zeros(1, dtype=torch.float32), torch.zeros(dist.get_world_size(), dtype=torch.float32)
    seconds: list[float] = []
    for _ in range(calls):
        start = time.perf_counter()
        dist.all_gather_into_tensor(every, mine)
        seconds.append(time.perf_counter() - start)
    found = torch.tensor(statistics.median(seconds), dtype=torch.float64)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return float(found) / (dist.get_world_size() - 1)


if __name__ == "__main__":
    run_cases(run)
