"""A plain PyTorch loop with one line more: ``paceline.attach`` puts TernGrad on a stock DDP model.

torchrun --standalone --nproc-per-node 2 examples/02_attach_to_your_loop.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline


def main() -> None:
    """Ten epochs of a two-layer network on scikit-learn's digits."""
    dist.init_process_group("gloo")
    rank, workers = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)

    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    hook = paceline.attach(model, "terngrad")  # the only line that Paceline needs
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    for epoch in range(10):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(64):
            mine = batch[rank::workers]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
            optimizer.step()

    if rank == 0:
        accuracy = (model.module(x).argmax(1) == y).float().mean().item()
        print(hook)
        print(f"{hook.step} steps, {hook.meter.sent_bytes} bytes sent since the start by this worker, accuracy {accuracy:.1%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
