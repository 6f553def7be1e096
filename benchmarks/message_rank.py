"""One rank that exchanges small messages with every other. ``message_processor.py`` starts it on every host."""

from __future__ import annotations

import resource
import time
from typing import Any

import torch
import torch.distributed as dist
from rank_cases import run_cases


def run(case: dict[str, Any], spec: dict[str, Any], prepared: None) -> dict[str, Any]:
    """Exchange one message of ``size`` bytes with every other rank, ``rounds`` times; processor and other seconds of a pair."""
    ranks, me = dist.get_world_size(), dist.get_rank()
    outgoing = {rank: torch.zeros(case["size"], dtype=torch.uint8) for rank in range(ranks) if rank != me}
    incoming = {rank: torch.zeros(case["size"], dtype=torch.uint8) for rank in outgoing}

    def exchange(tag: int) -> None:
        operations = [
            dist.P2POp(what, tensor, rank, tag=tag)
            for what, tensors in ((dist.irecv, incoming), (dist.isend, outgoing))
            for rank, tensor in tensors.items()
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    for tag in range(20):
        exchange(tag)
    dist.barrier()
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for tag in range(spec["rounds"]):
        exchange(1000 + tag)
    after, wall = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter() - start
    pairs = spec["rounds"] * (ranks - 1)
    used = torch.tensor([after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime, wall], dtype=torch.float64)
    dist.all_reduce(used)
    user, system, wall = (used / ranks / pairs).tolist()
    return {**case, "user_s": user, "system_s": system, "processor_s": user + system, "wall_s": wall}


if __name__ == "__main__":
    run_cases(run, lambda spec: None)
