"""Ranks of training/attach/shards/test_step_verdict.py: steps of sharded models with one bad gradient on one rank."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from paceline import LARS, attach
from sharded_models import CLASSES, INPUTS, Grads, gradients, hybrid, weights

BAD, STEPS = 1, 3
NAN = float("nan")
CASES: dict[str, dict[str, Any]] = {
    "sign": {"compression": "sign"},
    "sign, ring": {"compression": "sign", "exchange": "ring"},
    "momentum": {"compression": "topk", "density": 0.05, "momentum": 0.9},
    "int8": {"compression": "int8"},
    "a unit dense": {"compression": "sign", "dense": ["0.*"]},
    "accumulated": {"compression": "sign"},
    "scaler": {"compression": "sign"},
    "reentrant": {"compression": "sign"},
}
PLAIN: dict[str, dict[str, Any]] = {
    "dense": {"compression": "dense"},
    "bf16": {"compression": "bf16"},
    "dense, to owners": {"compression": "dense", "exchange": "sharded"},
}
"""What has a NaN itself: no step is skipped."""
MESHES: dict[str, dict[str, Any]] = {
    "replicas": {"compression": "sign"},
    "nodes": {"compression": "sign", "exchange": "hierarchical", "ranks_per_node": 2},
    "tensor parallel": {"compression": "sign"},
}
FIRST, LAST = "2.0", "0"
"""Layers: of the unit that the backward pass reduces first, and of one that follows."""


def cases(workers: int) -> dict[str, dict[str, Any]]:
    """Cases of this number of ranks."""
    return MESHES if workers == 4 else CASES


def counts(rank: int, workers: int, meshes: list[str], names: list[str]) -> dict[str, Any]:
    """Bad steps counted on this rank, of which one was bad in the shard of one owner; bytes that a step takes to count."""
    logging.getLogger("paceline").setLevel(logging.ERROR)
    found: dict[str, Any] = {}
    for mesh in meshes:
        for case in names:
            if mesh == "replicas" and "owners" in case:
                continue
            model = network(mesh)
            hook = attach(model, **PLAIN[case])
            for step in range(STEPS):
                hook.meter.begin_step()
                model[0].bad = NAN if step == BAD and rank == workers - 1 else 0.0
                model(torch.ones(5, INPUTS)).square().mean().backward()
            counted = [hook.meter.nonfinite_steps, hook.state_dict()["nonfinite_steps"]]
            found[f"{mesh}: {case}"] = counted, hook.meter.bookkeeping_bytes
    return found


class _Poison(torch.autograd.Function):
    """A weight whose gradient has a bad element."""

    @staticmethod
    def forward(context: Any, weight: Tensor, value: float) -> Tensor:
        context.value = value
        return weight.view_as(weight)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        bad = gradients[0].clone()
        own = bad.to_local() if hasattr(bad, "to_local") else bad  # an operation of a DTensor would call the other ranks
        own.view(-1)[7] = context.value
        return bad, None


class Layer(nn.Linear):
    """A layer; ``bad`` is what an element of its weight's gradient is set to."""

    bad = 0.0

    def forward(self, x: Tensor) -> Tensor:
        weight = _Poison.apply(self.weight, self.bad) if self.bad else self.weight
        return nn.functional.linear(x, weight, self.bias)


class Reentrant(nn.Sequential):
    """Each part is computed again in a backward pass of its own, within that of the model."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        for part in self[:-1]:
            x = checkpoint(part, x, use_reentrant=True)
        return self[-1](x)


def network(case: str) -> Any:
    """Odd sizes, but for a layer that tensor parallelism divides."""
    torch.manual_seed(3)
    inner = 42 if case == "tensor parallel" else 43
    block = nn.Sequential(Layer(61, inner), nn.Tanh(), Layer(inner, 47))
    kind = Reentrant if case == "reentrant" else nn.Sequential
    model = kind(Layer(INPUTS, 61), nn.Tanh(), block, nn.Tanh(), Layer(47, CLASSES))
    mesh = hybrid() if case == "replicas" else None
    if case == "tensor parallel":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(model[2], both["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        mesh = both["data"]
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    return model


def _owed(hook: Any) -> list[Tensor]:
    return [values.clone() for kind in ("residual", "velocity") for _, _, _, values in hook._values(kind)]


def train(rank: int, workers: int, case: str, run: str) -> list[dict[str, Any]]:
    """Each step's gradients, residuals, weights and counts.

    ``run``: the layer that has a bad gradient in step ``BAD`` on the last rank, "infinite", or "without" that step.
    """
    where, value = (LAST, float("inf")) if run == "infinite" else (run, NAN)
    model = network(case)
    hook = attach(model, min_elements=10, **cases(workers)[case], check_every=0)
    sgd = case == "scaler"
    optimizer: Any = (
        torch.optim.SGD(model.parameters(), 0.1) if sgd else LARS(model.named_parameters(), lr=0.1, trust_coefficient=0.1)
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=1000, enabled=sgd)
    sample = rank // 2 if case == "tensor parallel" else rank
    rows = []
    old = weights(model)
    for step in range(STEPS):
        if step == BAD and run == "without":
            continue
        before = _owed(hook)
        optimizer.zero_grad()
        for micro in range(2 if case == "accumulated" else 1):
            model.set_requires_gradient_sync(micro == 1 or case != "accumulated")
            if run != "without":
                bad = step == BAD and rank == workers - 1 and micro == 0
                model.get_submodule(where).bad = value if bad else 0.0
            draws = torch.Generator().manual_seed(100 * step + 10 * micro + sample)
            loss = model(torch.randn(5, INPUTS, generator=draws)).square().mean()
            scaler.scale(loss).backward()
        seen = gradients(model)
        if case == "accumulated":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update(1.0) if sgd else None
        new, owed = weights(model), _owed(hook)
        rows.append(
            {
                "step": step,
                "gradients": seen,
                "kept": owed,
                "same residuals": all(torch.equal(a, b) for a, b in zip(before, owed, strict=True)),
                "same weights": all(torch.equal(old[name], new[name]) for name in old),
                "weights": new,
                "counted": hook.meter.nonfinite_steps,
                "steps": hook.step,
                "noted": hook.meter.bookkeeping_bytes,
            }
        )
        old = new
    return rows


def behaviours(rank: int, workers: int, runs: list[tuple[str, str]]) -> list[Any]:
    """Run pairs of a case and a run of it; the run of "shared" is a mesh."""
    logging.getLogger("paceline").setLevel(logging.ERROR)
    return [
        shared(rank, hybrid() if run == "replicas" else None) if case == "shared" else train(rank, workers, case, run)
        for case, run in runs
    ]


class Twice(nn.Module):
    """A layer that a forward pass calls twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.into, self.again, self.out = nn.Linear(INPUTS, 13), nn.Linear(13, 13), nn.Linear(13, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.again(torch.tanh(self.again(self.into(x)))))


def shared(rank: int, mesh: Any = None) -> dict[str, Grads]:
    """What units deliver over three steps, and still owe, beside their gradients; one unit is reduced twice in each."""
    totals: list[Grads] = []
    owed: Grads = {}
    for compression in ("", "topk"):
        model = Twice()
        fully_shard(model.again, mesh=mesh)
        fully_shard(model, mesh=mesh)
        hook = attach(model, compression, min_elements=10, density=0.05) if compression else None
        totals.append({})
        for step in range(3):
            model.zero_grad()
            draws = torch.Generator().manual_seed(100 * step + rank)
            model(torch.randn(5, INPUTS, generator=draws)).square().mean().backward()
            for name, gradient in gradients(model).items():
                totals[-1][name] = totals[-1].get(name, torch.zeros(())) + gradient
        for name, tensor, holding, values in hook._values("residual") if hook is not None else ():
            rows = torch.zeros(holding.owners, tensor.shard)
            rows[holding.place :: holding.places] = values
            torch.distributed.all_reduce(rows)
            owed[name] = tensor.whole_of(rows) / torch.distributed.get_world_size()
    return {"wanted": totals[0], "delivered": totals[1], "owed": owed}
