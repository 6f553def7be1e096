"""DiLoCo in your own loop: workers train alone for eight steps, then exchange how far they have come, in 8-bit integers.

torchrun --standalone --nproc-per-node 2 examples/06_local_steps.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

import paceline


def main() -> None:
    """Train a small network on made-up samples; each worker has its own."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    teacher = nn.Linear(20, 3)
    torch.manual_seed(1 + dist.get_rank())
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))  # the plain model, without DistributedDataParallel
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    sync = paceline.attach_local(model, "int8", sync_every=8)

    for step in range(1, 61):
        x = torch.randn(32, 20)
        loss = nn.functional.cross_entropy(model(x), teacher(x).argmax(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if sync.step() and dist.get_rank() == 0:
            print(f"step {step}: loss {loss:.3f}, {sync.meter.sent_bytes:,} bytes")
    sync.finish()  # the last four steps; ranks may have taken unequal numbers of them

    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    largest = weights.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(f"all workers have the same weights: {bool(torch.equal(weights, largest))}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
