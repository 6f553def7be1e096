"""What the ranks of training/optimizers/test_norms_sharded.py do: steps sharded by FSDP2, HSDP and ZeRO-1, and not at all."""

from __future__ import annotations

import io
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo  # once, before the ranks are forked: fully_shard and every optimizer load it
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

import paceline
import sharded_models
from paceline.errors import UserError

STEPS, BAD = 4, 2
SAMPLES = 24
"""Of a step, all ranks together: one rank alone takes them all, two to four take equal parts."""
KINDS: dict[str, dict[str, Any]] = {
    "LARS": {"lr": 0.1, "weight_decay": 1e-2, "trust_coefficient": 0.1},
    "LARS joint": {"lr": 0.1, "weight_decay": 1e-2, "trust_coefficient": 0.1, "variant": "joint"},
    "LAMB": {"lr": 2e-2},
    "LAMB nvlamb": {"lr": 2e-2, "variant": "nvlamb", "max_grad_norm": 0.1},
}
"""``nvlamb`` with a norm that every gradient exceeds."""


def network() -> nn.Module:
    """Sizes that no number of ranks divides; two rows, so that a third rank holds nothing of the last layer."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 11), nn.LayerNorm(11), nn.Linear(11, 2))


def optimizer(kind: str, params: Any, **more: Any) -> Any:
    return getattr(paceline, kind.split()[0])(params, **KINDS[kind], **more)


def train(model: nn.Module, chosen: Any, first: int, last: int, alone: bool = False) -> None:
    """Each rank sees samples of its own, and ``alone`` all of them: the mean of the ranks' gradients is that gradient.

    One step has an infinity, in the samples of the last rank.
    """
    workers, rank = (1, 0) if alone else (dist.get_world_size(), dist.get_rank())
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(SAMPLES, 5, generator=generator), torch.randn(SAMPLES, 2, generator=generator)
        share = slice(rank * SAMPLES // workers, (rank + 1) * SAMPLES // workers)
        loss = (model(x[share]) - y[share]).square().mean()
        chosen.zero_grad()
        (loss * (float("inf") if step == BAD and rank == workers - 1 else 1.0)).backward()
        chosen.step()


def whole(model: nn.Module) -> dict[str, Tensor]:
    """Unsharded weights."""
    named = model.module.named_parameters() if isinstance(model, DDP) else model.named_parameters()
    return sharded_models.whole(dict(named))


def plain(kind: str, last: int = STEPS) -> tuple[dict[str, Tensor], int]:
    model = network()
    chosen = optimizer(kind, model.named_parameters())
    train(model, chosen, 0, last, alone=True)
    return whole(model), chosen.skipped_steps


def sharded(model: nn.Module, mesh: Any) -> nn.Module:
    for part in model:
        if list(part.parameters()):
            fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def by_fsdp(kind: str, mesh: Any) -> dict[str, Any]:
    """Also how many all-reduces a step of the optimizer takes, and how large they are."""
    model = sharded(network(), mesh)
    chosen = optimizer(kind, model.named_parameters(), foreach=kind == "LARS joint")
    calls: list[int] = []
    real = dist.all_reduce

    def counted(tensor: Tensor, *arguments: Any, **more: Any) -> Any:
        calls.append(tensor.numel())
        return real(tensor, *arguments, **more)

    train(model, chosen, 0, STEPS - 1)
    chosen.register_step_pre_hook(lambda *_: calls.clear())  # those of the gradients
    with patch.object(dist, "all_reduce", counted):
        train(model, chosen, STEPS - 1, STEPS)
    return {"weights": whole(model), "skipped": chosen.skipped_steps, "calls": calls}


def by_zero(kind: str, empty: bool = False) -> dict[str, Any]:
    """``empty``: one parameter, which all ranks but one do without. LAMB is told of the other ranks; the rest find out."""
    model = DDP(network())
    params = [next(model.parameters())] if empty else model.parameters()
    told = {"norm_group": dist.group.WORLD if empty else "world"} if kind == "LAMB" else {}
    options = {**KINDS[kind], **told}
    chosen = ZeroRedundancyOptimizer(params, getattr(paceline, kind.split()[0]), **options)
    train(model, chosen, 0, STEPS)
    found = {"weights": whole(model), "skipped": chosen.optim.skipped_steps}
    if kind == "LAMB" and not empty:
        chosen.consolidate_state_dict(0)
        file = io.BytesIO()
        if dist.get_rank() == 0:
            torch.save(chosen.state_dict(), file)
            state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
            alone = network()
            alone.load_state_dict(found["weights"])
            other = optimizer(kind, alone.parameters())
            other.load_state_dict(state)
            train(alone, other, STEPS, STEPS + 1, alone=True)
            found["alone"] = whole(alone)
        train(model, chosen, STEPS, STEPS + 1)
        found["together"] = whole(model)
    return found


def run(rank: int, workers: int, kinds: list[str]) -> dict[str, Any]:
    """What is tested on this many ranks, in one start of the processes."""
    found: dict[str, Any] = {"plain": {kind: plain(kind) for kind in kinds}}
    if workers == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
        found["hsdp"] = {kind: by_fsdp(kind, mesh) for kind in kinds}
        return found
    mesh = init_device_mesh("cpu", (workers,))
    found["fsdp"] = {kind: by_fsdp(kind, mesh) for kind in kinds}
    if workers == 2:
        found["zero"] = {kind: by_zero(kind) for kind in kinds}
        found["zero, one parameter"] = by_zero("LAMB", empty=True)
        found["zero, one parameter, found out"] = by_zero("LARS", empty=True)
        found["refused"] = {kind: of_other_sharding(kind, mesh) for kind in ("LARS", "LAMB")}
        found["moved"] = {kind: change_of_world_size(kind, mesh) for kind in ("LARS", "LAMB")}
    return found


def of_other_sharding(kind: str, mesh: Any) -> list[str]:
    """What is said of a whole tensor's state for shards, and of a shard's for whole tensors."""
    models = network(), sharded(network(), mesh)
    both = [optimizer(kind, model.named_parameters()) for model in models]
    for model, chosen in zip(models, both, strict=True):
        train(model, chosen, 0, 1)
    said = []
    for mine, other in (both, both[::-1]):
        try:
            mine.load_state_dict(other.state_dict())
        except UserError as error:
            said.append(str(error))
    named = sharded(network(), init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shards",)))
    optimizer(kind, named.named_parameters()).load_state_dict(both[1].state_dict())  # the same ranks by another name
    return said


def change_of_world_size(kind: str, mesh: Any) -> dict[str, dict[str, Tensor]]:
    """Three steps on all ranks, one on each alone, two on all again, by torch's own unsharded state."""
    full = StateDictOptions(full_state_dict=True)
    model = sharded(network(), mesh)
    chosen = optimizer(kind, model.named_parameters())
    train(model, chosen, 0, 3)
    state, weights = get_optimizer_state_dict(model, chosen, options=full), whole(model)
    both: list[Any] = [state]
    dist.broadcast_object_list(both)  # only rank 0 is given the state

    alone = network()
    alone.load_state_dict(weights)
    other = optimizer(kind, alone.named_parameters())
    set_optimizer_state_dict(alone, other, both[0], options=full)
    train(alone, other, 3, STEPS, alone=True)
    state, weights = get_optimizer_state_dict(alone, other, options=full), whole(alone)

    model = network()
    model.load_state_dict(weights)
    model = sharded(model, mesh)
    chosen = optimizer(kind, model.named_parameters())
    set_optimizer_state_dict(model, chosen, state, options=full)
    train(model, chosen, STEPS, STEPS + 2)
    return {"after": whole(model), "plain": plain(kind, STEPS + 2)[0]}
