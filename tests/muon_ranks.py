"""Ranks of the tests of training/optimizers/muon: steps of Muon under DDP, FSDP2, HSDP and tensor parallelism, and alone."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo  # once, before the ranks are forked
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import paceline
import sharded_models
from paceline.training.exchanges.wires.collectives import ALL_GATHER

STEPS = 3
FULL = StateDictOptions(full_state_dict=True)


class Block(nn.Module):
    """Matrices whose rows four ranks do not divide, one that is a stack, and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 14), nn.Linear(14, 8)
        self.experts = nn.Parameter(torch.randn(3, 8, 8) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).tanh()) + torch.einsum("bi,eij->bj", x, self.experts)


class Network(nn.Module):
    """An embedding of few rows, two blocks and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.blocks, self.output = nn.Linear(5, 8), nn.ModuleList([Block(), Block()]), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs(x)
        for block in self.blocks:
            x = block(x)
        return self.output(x)


def network() -> Network:
    torch.manual_seed(5)
    return Network()


def muon(model: nn.Module, **options: Any) -> paceline.Muon:
    """Small rounds, so that there are several; the fused ``up`` is two matrices."""
    return paceline.Muon(model, lr=0.01, **{"bucket_elements": 300, "split": {"*.up.weight": 2}, **options})


def give(model: nn.Module, step: int) -> None:
    """Gradients that depend on the step alone, in the shards of the parameters."""
    generator = torch.Generator().manual_seed(step)
    for p in model.parameters():
        whole = torch.randn(p.shape, generator=generator).to(p.dtype)
        if isinstance(p, DTensor):
            copies = DTensor.from_local(whole, p.device_mesh, [Replicate()] * p.device_mesh.ndim)
            p.grad = copies.redistribute(p.device_mesh, p.placements)
        else:
            p.grad = whole


def train(model: nn.Module, optimizer: paceline.Muon, first: int = 0, last: int = STEPS) -> None:
    for step in range(first, last):
        give(model, step)
        optimizer.step()


def whole(model: nn.Module) -> dict[str, Tensor]:
    return sharded_models.whole(dict(model.named_parameters()))


def fsdp(model: Network, mesh: Any) -> Network:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def divided(model: Network, mesh: Any) -> Network:
    """Tensor parallelism: ``up`` by rows, ``down`` by columns, experts by expert."""
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        block.experts = nn.Parameter(distribute_tensor(block.experts.detach(), mesh, [Shard(0)]))
    return model


def models(workers: int) -> dict[str, nn.Module]:
    """A model for each way to hold it on this many ranks."""
    mesh = init_device_mesh("cpu", (workers,), mesh_dim_names=("all",))
    found: dict[str, nn.Module] = {"ddp": DistributedDataParallel(network()), "fsdp": fsdp(network(), mesh)}
    if workers == 2:
        found["tensor"] = divided(network(), mesh)
    if workers == 4:
        square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
        found["hsdp"] = fsdp(network(), square)
        found["fsdp and tensor"] = fsdp(divided(network(), square["inner"]), square["outer"])
    return found


def run(rank: int, workers: int, precisions: str) -> dict[str, Any]:
    """Weights of every way, the calls and bytes of a step, and each rank's FLOPs."""
    found: dict[str, Any] = {}
    for precision in precisions.split():
        alone = network()
        single = muon(alone, precision=precision)
        train(alone, single)
        found[precision] = {"alone": whole(alone)}
        for way, model in models(workers).items():
            optimizer = muon(model, precision=precision)
            train(model, optimizer, 0, STEPS - 1)
            calls: list[str] = []
            with patch.multiple(dist, **{name: counted(name, calls) for name in CALLS}):
                train(model, optimizer, STEPS - 1, STEPS)
            state = get_optimizer_state_dict(model, optimizer, options=FULL)
            rounds = max(len(exchange.rounds) for exchange, _, _ in optimizer._exchanges)
            found[precision][way] = {
                "weights": {name.removeprefix("module."): value for name, value in whole(model).items()},
                "calls": calls,
                "rounds": rounds,
                "flops": optimizer.orthogonalization_flops,
                "of_one": single.orthogonalization_flops,
                "moved": moved(state, whole(model), precision),
                "skipped": skipped(model, optimizer, rank == workers - 1),
            }
        train(alone, single, STEPS, STEPS + 1)
        found[precision]["next"] = whole(alone)
    return found


CALLS = ("all_to_all_single", ALL_GATHER, "all_reduce")


def counted(name: str, calls: list[str]) -> Any:
    real = getattr(dist, name)

    def call(*arguments: Any, **more: Any) -> Any:
        calls.append(name)
        return real(*arguments, **more)

    return call


def moved(state: dict[str, Any], weights: dict[str, Tensor], precision: str) -> dict[str, Tensor]:
    """Weights after one more step of a process that takes the state of all ranks over, alone."""
    both: list[Any] = [state, weights]
    dist.broadcast_object_list(both)
    model = network()
    model.load_state_dict({name.removeprefix("module."): value for name, value in both[1].items()})
    optimizer = muon(model, precision=precision)
    set_optimizer_state_dict(model, optimizer, both[0], options=FULL)
    train(model, optimizer, STEPS, STEPS + 1)
    return whole(model)


def skipped(model: nn.Module, optimizer: paceline.Muon, spoil: bool) -> bool:
    """Return whether a gradient that is not finite on one rank changes nothing on any."""
    before = whole(model)
    give(model, 99)
    gradient = next(model.parameters()).grad
    assert gradient is not None
    if spoil:
        (gradient.to_local() if isinstance(gradient, DTensor) else gradient).fill_(float("nan"))
    optimizer.step()
    return optimizer.skipped_steps == 1 and all(value.equal(before[name]) for name, value in whole(model).items())
