"""What the ranks of slimming/test_group_lasso_sharded.py do: a path to a budget, sharded by FSDP2, by DDP, and alone."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo  # once, before the ranks are forked
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import paceline
from paceline.slimming.slim import Slim

STEPS = 24


def network() -> nn.Module:
    """Widths that no number of ranks divides."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 17), nn.Tanh(), nn.Linear(17, 9), nn.LayerNorm(9), nn.Linear(9, 2))


def slimmed(kind: str) -> dict[str, Tensor]:
    """Weights at the end of the path, whole. Every rank sees the same samples."""
    model = network()
    slim = Slim(model, (torch.zeros(1, 5),), budget="size=500B")
    slim.structures  # noqa: B018 (traced before it is sharded)
    trained: nn.Module = model
    if kind == "fsdp":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for part in model:
            if list(part.parameters()):
                fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif kind == "attached":
        trained = DistributedDataParallel(model)
        paceline.attach(trained, "dense")
    optimizer = slim.wrap(torch.optim.SGD(model.parameters(), 0.1, 0.9), STEPS)
    for step in range(STEPS):
        x = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        trained(x).square().mean().backward()
        optimizer.step()
    named: dict[str, Any] = dict(model.named_parameters())
    return {name: (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone() for name, p in named.items()}


def run(rank: int, workers: int) -> dict[str, dict[str, Tensor]]:
    """Of this rank."""
    return {kind: slimmed(kind) for kind in ("alone", "fsdp", "attached")}
