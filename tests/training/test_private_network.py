"""The kernel's own count of what crossed the wire, in a network namespace that nobody else is in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import can_make_private_network, launch
from paceline.strategy import COMPRESSIONS, phases, plan_bucket
from paceline.training.attach import attach

WORKERS, STEPS, ELEMENTS = 3, 6, 1_000_003
CASES = [["dense", "allreduce"], ["dense", "sharded"], ["terngrad", "sharded"], ["terngrad", "parameter_server"]]


def interface_bytes() -> int:
    """Bytes sent over lo since it is up; whatever one rank sends to another is there once."""
    line = next(row for row in Path("/proc/net/dev").read_text().splitlines() if row.strip().startswith("lo:"))
    return int(line.partition(":")[2].split()[8])


def count(rank: int, workers: int, cases: list[list[str]]) -> dict[str, Any]:
    """Bytes of one step over all ranks, as the interface counts them."""
    result = {}
    for compression, way in cases:
        model = DDP(nn.Linear(ELEMENTS, 1, bias=False))
        hook = attach(model, compression, exchange=way)
        hook.dense = {}
        if hook.terngrad is not None:
            hook.terngrad.dense = {}
        gradient = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(rank))
        hook.exchange_now(gradient.clone())  # connections are made
        dist.barrier()
        before = interface_bytes()
        dist.barrier()
        for _ in range(STEPS):
            hook.exchange_now(gradient.clone())
        dist.barrier()
        result[f"{compression}, {way}"] = (interface_bytes() - before) / STEPS
        dist.barrier()
    return result


@pytest.mark.skipif(not can_make_private_network(), reason="needs the right to make a network namespace (root)")
def test_the_interface_counts_what_is_described():
    measured = launch(count, WORKERS, private_network=True, cases=CASES)[0]
    report = []
    for compression, way in CASES:
        described = COMPRESSIONS[compression]
        one = type("One", (), {"name": "w", "shape": (1, ELEMENTS)})()
        expected = sum(
            phase.sent(rank)
            for phase in phases(plan_bucket([one], described, set()), described, way, WORKERS)
            for rank in range(WORKERS)
        )
        report.append((f"{compression}, {way}", measured[f"{compression}, {way}"] / expected))
    assert all(0.999 < ratio < 1.04 for _, ratio in report), report
