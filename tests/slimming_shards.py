"""What the ranks of slimming/test_group_lasso_sharded.py do: a path to a budget, sharded by FSDP2, by DDP, and alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo  # once, before the ranks are forked
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import paceline
from paceline.errors import UserError
from paceline.slimming.methods.sharded import gathered, same_on_all_ranks, shell
from paceline.slimming.slim import Slim

STEPS = 24
SAMPLES = 12
"""Of a step, all ranks together."""


def network() -> nn.Module:
    """Widths that no number of ranks divides."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 17), nn.Tanh(), nn.Linear(17, 9), nn.LayerNorm(9), nn.Linear(9, 2))


def slimmed(kind: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights at the end of the path, whole, and of the small network. Each rank sees samples of its own, ``alone`` all."""
    model = network()
    workers, rank = (1, 0) if kind == "alone" else (dist.get_world_size(), dist.get_rank())
    slim = Slim(model, (torch.zeros(1, 5),), budget="size=500B")
    slim.check()  # traced before it is sharded
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
        x = torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(step)).chunk(workers)[rank]
        optimizer.zero_grad()
        trained(x).square().mean().backward()
        optimizer.step()
    named: dict[str, Any] = dict(model.named_parameters())
    whole = {name: (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone() for name, p in named.items()}
    return whole, dict(slim.shrink().state_dict())


def run(rank: int, workers: int) -> dict[str, Any]:
    """Of this rank."""
    found: dict[str, Any] = {kind: slimmed(kind) for kind in ("alone", "fsdp", "attached")}
    return found | {
        "buffers": gathered_buffers(rank),
        "tied": gathered_tied(),
        "measured": measured_once(rank),
        "refused": refusals(),
    }


def gathered_buffers(rank: int) -> Tensor:
    """Running means of a network that each rank has trained on samples of its own."""
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7))
    model[1].get_buffer("running_mean").fill_(rank + 1)
    empty = shell(model)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return gathered(model, empty)[1].running_mean  # type: ignore[index, return-value]


def gathered_tied() -> tuple[bool, bool]:
    """Whether the embedding and the output of a sharded network are one parameter again, with its values."""
    model = nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 7, bias=False))
    model[1].weight = model[0].weight
    before, empty = model[0].weight.detach().clone(), shell(model)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    whole: Any = gathered(model, empty)
    return whole[0].weight is whole[1].weight, bool((whole[0].weight == before).all())


def measured_once(rank: int) -> list[Any]:
    """What this rank knows after rank 0 has measured, and the error that rank 0 had."""

    def fails() -> dict[str, Any]:
        raise UserError("no budget", "give one")

    known: list[Any] = [same_on_all_ranks(lambda: {"rank": rank})]
    with pytest.raises(UserError) as error:
        same_on_all_ranks(fails)
    return [*known, str(error.value)]


def refusals() -> list[str]:
    """Of a network that is sharded too early, and of a method that needs whole weights."""
    said = []
    for method, model in (("ssl", network()), ("force", network())):
        slim = Slim(model, (torch.zeros(1, 5),), method=method)
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        optimizer = slim.wrap(torch.optim.SGD(model.parameters(), 0.1))
        model(torch.randn(2, 5)).sum().backward()
        with pytest.raises(UserError) as error:
            optimizer.step()
        said.append(str(error.value))
    return said
