"""One rank of a real training over a slow link, with paced compute. ``local_sgd_lab.py`` starts it on every host.

The network, the data, the gradients, the codec and the sockets are real. A sleep in every forward pass stands for the rest of
an accelerator's step, so that hosts of one machine work side by side. Rank 0 prints one JSON line a case.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from link_bytes import sent_bytes
from rank_cases import run_cases
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import paceline
from paceline import models
from paceline.training.runs.data import Dataset

NEVER = 10**6
"""Steps between exchanges of a worker that trains alone."""


class Paced(nn.Module):
    """A network whose forward pass begins with a sleep."""

    def __init__(self, network: nn.Module, seconds: float) -> None:
        super().__init__()
        self.network, self.seconds = network, seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sleep, then what the network makes of ``x``."""
        time.sleep(self.seconds)
        out: torch.Tensor = self.network(x)
        return out


def batches(data: Dataset, spec: dict[str, Any]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's samples of every step: the same for all cases."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    size, generator = spec["batch"] * workers, torch.Generator().manual_seed(spec["seed"])
    order, at = torch.empty(0, dtype=torch.int64), 0
    for _ in range(spec["steps"]):
        if at + size > len(order):
            order, at = torch.randperm(len(data.train_y), generator=generator), 0
        mine = order[at + rank * spec["batch"] :][: spec["batch"]]
        yield data.train_x[mine], data.train_y[mine]
        at += size


def run(case: dict[str, Any], spec: dict[str, Any], data: Dataset) -> dict[str, Any]:
    """Train from the same weights; seconds, bytes and what the network has learned."""
    torch.manual_seed(spec["seed"])
    model = Paced(models.build(spec["model"]), spec["pace_s"])
    local, name = case.get("local", {}), case["compression"]
    every = local.get("sync_every", 1)
    sync = hook = None
    if local:
        sync = paceline.attach_local(model, name, seed=spec["seed"], **local)
        trained: nn.Module = model
    else:
        trained = DistributedDataParallel(model)
        hook = paceline.attach(trained, name, seed=spec["seed"])
    optimizer = torch.optim.SGD(model.parameters(), spec["lr"], momentum=0.9)
    ends: list[float] = []
    metered: list[int] = []
    dist.barrier()
    skipped = 0 if every == NEVER else every if every > 1 else spec["warm"]
    before = sent_bytes()
    start = time.perf_counter()
    for number, (x, y) in enumerate(batches(data, spec), start=1):
        if hook is not None:
            hook.meter.begin_step()
        cross_entropy(trained(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        ended = sync is not None and sync.step()
        source = hook or (sync if ended else None)
        metered.append(source.meter.sent_bytes if source is not None else 0)
        ends.append(time.perf_counter() - start)
        if number == skipped:
            before = sent_bytes()
    sent = sent_bytes() - before
    taken = (ends[-1] - (ends[skipped - 1] if skipped else 0.0)) / (len(ends) - skipped)
    step = torch.tensor([taken], dtype=torch.float64)
    dist.all_reduce(step, op=dist.ReduceOp.MAX)
    busiest = torch.tensor([sent / (len(ends) - skipped), sum(metered[skipped:])], dtype=torch.float64)
    dist.all_reduce(busiest, op=dist.ReduceOp.MAX)
    if sync is not None and every != NEVER:
        sync.finish()
    width = 1 if every == NEVER else max(every, 1)
    marks = [0.0, *ends][skipped::width]
    rounds = [(b - a) / width for a, b in pairwise(marks)]
    loss, accuracy = evaluated(model, data)
    return {
        **case,
        "step_s": float(step),
        "step_low_s": min(rounds),
        "step_high_s": max(rounds),
        "median_s": statistics.median(rounds),
        "socket_bytes": round(float(busiest[0])),
        "metered_bytes": -(-int(busiest[1]) // (len(ends) - skipped)),
        "loss": loss,
        "accuracy": accuracy,
        "steps": len(ends),
    }


@torch.no_grad()
def evaluated(model: Paced, data: Dataset) -> tuple[float, float]:
    """Loss and accuracy on the samples that are held out."""
    model.eval()
    out = torch.cat([model.network(x) for x in data.test_x.split(256)])
    return float(cross_entropy(out, data.test_y)), float((out.argmax(1) == data.test_y).float().mean())


if __name__ == "__main__":
    run_cases(run)
