"""Models that FSDP2 has sharded, each trained with an exchange attached and as PyTorch trains them alone; run by every rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
from torch.distributed.tensor import DTensor, Shard

from paceline import ReplicasDiverged, UserError, attach

Grads = dict[str, Tensor]
INPUTS, CLASSES = 31, 7


def network() -> nn.Sequential:
    """Odd sizes: no dimension divides among 2, 3 or 4 ranks; the last bias has fewer rows than padding."""
    torch.manual_seed(3)
    block = nn.Sequential(nn.Linear(61, 43), nn.Tanh(), nn.Linear(43, 47))
    return nn.Sequential(nn.Linear(INPUTS, 61), nn.Tanh(), block, nn.Tanh(), nn.Linear(47, CLASSES))


def sharded(mesh: DeviceMesh | None = None, **options: Any) -> Any:
    """The network in three units: its first layer, its block, and what is left."""
    model = network()
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh, **options)
    return model


def hybrid() -> DeviceMesh:
    """Two replicas of two shards."""
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    """Of this rank's own samples in a step."""
    draws = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(5, INPUTS, generator=draws) * (1 + rank)
    return nn.functional.cross_entropy(model(x).float(), torch.randint(0, CLASSES, (5,), generator=draws))


def whole(values: dict[str, Any]) -> Grads:
    """Full fp32 tensors. Those that FSDP2 shards by rows are gathered in one message, as PyTorch's own takes long."""
    full: Grads = {}
    by_rows: dict[DeviceMesh, dict[str, DTensor]] = {}
    for name, value in values.items():
        if not isinstance(value, DTensor):
            full[name] = value.detach().clone().float()
        elif value.placements[-1] == Shard(0) and all(other.is_replicate() for other in value.placements[:-1]):
            by_rows.setdefault(value.device_mesh, {})[name] = value
        else:
            full[name] = value.full_tensor().detach().clone().float()
    for mesh, tensors in by_rows.items():
        full |= _gathered(tensors, mesh.get_group(mesh.ndim - 1))
    return {name: full[name] for name in values}


def _gathered(tensors: dict[str, DTensor], group: dist.ProcessGroup) -> Grads:
    """Each rank sends its rows as if all tensors had as many of them as the first rank's."""
    places = group.size()
    rows = {name: -(-value.shape[0] // places) for name, value in tensors.items()}
    sizes = [rows[name] * value.shape[1:].numel() for name, value in tensors.items()]
    own = torch.zeros(sum(sizes))
    for value, part in zip(tensors.values(), own.split(sizes), strict=True):
        local = value.to_local().detach().flatten()
        part[: local.numel()] = local
    parts = [torch.empty_like(own) for _ in range(places)]
    dist.all_gather(parts, own, group)
    pieces = zip(*(part.split(sizes) for part in parts), strict=True)
    return {
        name: torch.cat(piece)[: value.numel()].view(value.shape)
        for (name, value), piece in zip(tensors.items(), pieces, strict=True)
    }


def gradients(model: nn.Module) -> Grads:
    """The gradients as full tensors; those that are None are left out."""
    return whole({name: p.grad for name, p in model.named_parameters() if p.grad is not None})


def weights(model: nn.Module) -> Grads:
    """The weights as full tensors."""
    return whole(dict(model.named_parameters()))


def backward(model: nn.Module, rank: int, step: int) -> Grads:
    """One backward pass from no gradients."""
    model.zero_grad()
    loss(model, rank, step).backward()
    return gradients(model)


STEPS = 2
CODECS: dict[str, dict[str, Any]] = {
    f"{compression} {exchange}": {"compression": compression, "exchange": exchange, "min_elements": 10}
    for exchange in ("sharded", "ring")
    for compression in ("int8", "terngrad", "sign", "topk", "inceptionn-scaled")
}
OVER_ALL: dict[str, dict[str, Any]] = {
    "torch": {},
    "dense": {"compression": "dense"},
    "bf16": {"compression": "bf16"},
    **CODECS,
    "nodes": {"compression": "int8", "min_elements": 10, "exchange": "hierarchical", "ranks_per_node": 2},
}
BETWEEN_COPIES: dict[str, dict[str, Any]] = {
    "hsdp torch": {},
    "hsdp dense": {"compression": "dense"},
    **{
        f"hsdp int8 {exchange}": {"compression": "int8", "min_elements": 10, "exchange": exchange}
        for exchange in ("sharded", "ring", "allgather")
    },
}
"""Exchanges of HSDP."""


def exchanged(rank: int, workers: int, names: list[str]) -> dict[str, Any]:
    """Gradients of two steps under each exchange, or PyTorch's; bytes of each step."""
    found: dict[str, Any] = {}
    for name in names:
        options = (OVER_ALL | BETWEEN_COPIES)[name]
        model = sharded(hybrid() if name in BETWEEN_COPIES else None)
        hook = attach(model, **options) if options else None
        sent, seen = [], []
        for step in range(STEPS):
            if hook is not None:
                hook.meter.begin_step()
            seen.append(backward(model, rank, step))
            sent.append(hook.meter.sent_bytes if hook is not None else 0)
        found[name] = {"gradients": seen, "sent": sent, "dense": set(hook.dense) if hook is not None else set()}
    return found


def usual(rank: int, workers: int) -> dict[tuple[str, str], str]:
    """The exchange of each compression over all ranks and between the copies of HSDP, if the script names none."""
    return {
        (mesh, name): attach(sharded(of_mesh), name).gradient_exchange.exchange.name
        for mesh, of_mesh in (("over all", None), ("between copies", hybrid()))
        for name in ("dense", "topk", "int8")
    }


def tensor_parallel(rank: int, workers: int) -> dict[str, Any]:
    """Two by two ranks: tensors divided within a pair, samples between pairs. The mean is over the pairs alone."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))

    def model() -> Any:
        made = network()  # PyTorch divides a layer among equal parts only
        made[2][0], made[2][2] = nn.Linear(61, 42), nn.Linear(42, 47)
        parallelize_module(made[2], mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        return made

    def shard(made: Any) -> Any:
        for part in (made[0], made[2], made):
            fully_shard(part, mesh=mesh["data"])
        return made

    own = mesh["data"].get_local_rank()
    alone, dense, coded = (shard(model()) for _ in range(3))
    attach(dense, "dense", exchange="sharded")
    hook = attach(coded, "int8", min_elements=10)
    return {
        "torch": backward(alone, own, 0),
        "dense": backward(dense, own, 0),
        "int8": backward(coded, own, 0),
        "ranks": dist.get_process_group_ranks(hook.units[0].shard_group),
        "labels": sorted(unit.label(t) for unit in hook.units for t in unit.tensors),
    }


@contextlib.contextmanager
def _refusals(found: dict[str, Any], name: str) -> Iterator[None]:
    try:
        yield
        found[name] = "nothing refused"
    except UserError as error:
        found[name] = str(error)


def refused(rank: int, workers: int) -> dict[str, str]:
    """What cannot be attached to a sharded model, with what is said."""
    found: dict[str, str] = {}
    calls: dict[str, tuple[str, dict[str, Any]]] = {
        "powersgd": ("powersgd", {}),
        "auto": ("auto", {}),
        "allgather": ("topk", {"exchange": "allgather"}),
        "parameter server": ("int8", {"exchange": "parameter_server"}),
        "pull": ("int8", {"compress_pull": False}),
        "noise": ("dense", {"noise_scale": True}),
        "bits": ("int8", {"gather_bits": 4}),
        "nodes": ("int8", {"exchange": "hierarchical", "ranks_per_node": 3}),
        "unequal": ("int8", {"seed": rank}),
        "unknown": ("int9", {}),
    }
    for name, (compression, options) in calls.items():
        with _refusals(found, name):
            attach(sharded(), compression, **options)
    with _refusals(found, "no root"):
        model = network()
        fully_shard(model[0])
        attach(model, "int8")
    with _refusals(found, "more bits"):
        attach(sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)), "int8", gather_bits=32)
    with _refusals(found, "groups of one"):
        attach(sharded(mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))), "int8")
    with _refusals(found, "ddp gathers"):
        attach(nn.parallel.DistributedDataParallel(network()), "int8", gather_bits=8)
    with _refusals(found, "compressions"):
        attach(sharded(), "int8" if rank else "int4")
    with _refusals(found, "options"):
        attach(sharded(), "int8", exchange="ring" if rank else "sharded", block=64 + 64 * rank)
    with _refusals(found, "twice"):
        model = sharded()
        attach(model, "int8")
        attach(model, "int8")
    with _refusals(found, "own reduce-scatter"):
        model = sharded()
        model[2].set_custom_reduce_scatter(OwnReduceScatter())
        attach(model, "int8")
    with _refusals(found, "child"):
        attach(sharded()[2], "int8")
    with _refusals(found, "child, before its root"):
        model = network()
        fully_shard(model[0])
        attach(model[0], "int8")
        fully_shard(model)
        backward(model, rank, 0)
    with _refusals(found, "sparse embedding"):
        model = nn.Sequential(nn.Embedding(30, 8, sparse=True), nn.Linear(8, 3))
        fully_shard(model)
        attach(model, "int8")
    with _refusals(found, "sparse lookup"):
        lookup = Lookup()
        fully_shard(lookup)
        attach(lookup, "int8")
        lookup(torch.arange(6)).sum().backward()
    for name in ("0.weight", "2.0.bias"):  # of a unit that was frozen as a whole, and of one in part
        with _refusals(found, f"unfrozen {name}"):
            model = network()
            frozen = model[0] if name == "0.weight" else model[2][0].bias
            frozen.requires_grad_(False)
            for part in (model[0], model[2], model):
                fully_shard(part)
            attach(model, "int8")
            backward(model, rank, 0)
            model.get_parameter(name).requires_grad_(True)
            backward(model, rank, 1)
    return found


class OwnReduceScatter(DefaultReduceScatter):
    """One that a user has set."""


class Lookup(nn.Module):
    """An embedding in its functional form."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.out = nn.Parameter(torch.ones(30, 8)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(nn.functional.embedding(x, self.rows, sparse=True))


def rounded_weights(rank: int, workers: int) -> dict[str, Any]:
    """The weights that the forward pass of each rank has seen, gathered in fewer bits."""
    found: dict[str, Any] = {}
    for bits in (0, 8, 16, 32):
        model = sharded()
        hook = attach(model, "dense", gather_bits=bits)
        seen: list[Tensor] = []
        model[2][0].register_forward_hook(lambda module, inputs, out, seen=seen: seen.append(module.weight.detach().clone()))
        hook.meter.begin_step()
        backward(model, rank, 0)
        own = weights(model)
        largest = float(own["2.0.weight"].abs().max())
        found[str(bits)] = {"seen": seen[0], "sent": hook.meter.sent_bytes, "own": own["2.0.weight"], "largest": largest}
    return found


def from_meta(rank: int, workers: int) -> dict[str, Any]:
    """Gradients and residuals of two steps: of a model that got its weights before ``attach``, and of one from the meta device
    that got them after."""
    found: dict[str, Any] = {}
    calls: dict[str, tuple[str, Any, dict[str, Any]]] = {
        "dense": ("dense", None, {}),
        "int8": ("int8", None, {"gather_bits": 8}),
        "topk": ("topk", None, {}),
        "host": ("topk", None, {"residuals_at": "host", "residual_bits": 16}),
    }
    if workers == 4:
        calls |= {"nodes": ("topk", None, {"exchange": "hierarchical", "ranks_per_node": 2}), "hsdp": ("topk", hybrid(), {})}
    for name, (compression, mesh, options) in calls.items():
        outcomes = []
        for device in ("cpu", "meta"):
            usual = sharded(mesh)
            with torch.device(device):
                model = sharded(mesh)
            small = {} if compression == "dense" else {"min_elements": 10}
            hook = attach(model, compression, check_every=1, **small, **options)
            if device == "meta":
                model.to_empty(device="cpu")
                with torch.no_grad():
                    for own, other in zip(model.parameters(), usual.parameters(), strict=True):
                        own.to_local().copy_(other.to_local())
            seen = [backward(model, rank, step) for step in range(2)]
            residuals = {label: v.to_local() for label, v in hook.state_dict()["residual"].items()}
            outcomes.append({**seen[0], **{f"{label} later": v for label, v in seen[1].items()}, **residuals})
        found[name] = outcomes
    return found


def frozen_unit(rank: int, workers: int) -> dict[str, int]:
    """Bytes of a step of a model whose block is frozen, weights gathered in so many bits; then of one that froze it later."""
    found: dict[str, int] = {}
    for name, bits, late in (("32", 0, False), ("8", 8, False), ("late", 0, True)):
        model = network()
        model[2].requires_grad_(late)
        for part in (model[0], model[2], model):
            fully_shard(part)
        hook = attach(model, "dense", exchange="sharded", gather_bits=bits)
        if late:
            backward(model, rank, 0)
            model[2].requires_grad_(False)
        hook.meter.begin_step()
        backward(model, rank, 1)
        found[name] = hook.meter.sent_bytes
    model[2].requires_grad_(True)
    found["thawed"] = len(backward(model, rank, 2))
    return found


def diverged(rank: int, workers: int) -> dict[str, list[str]]:
    """What each rank is told in the steps behind a change of rank 0's shard, of replicas that check every step."""
    found: dict[str, list[str]] = {}
    for name, changed in (("one", [0]), ("two", [2, 3])):
        model, said = sharded(hybrid()), []
        hook = attach(model, "int8", check_every=1)
        for step in range(3):
            if step == 1 and rank in changed:
                with torch.no_grad():
                    model[2][0].weight.to_local().view(-1)[0] += 1
            try:
                backward(model, rank, step)
                said.append("alike")
            except ReplicasDiverged as error:
                said.append(str(error))
        assert hook.step == 3 and not any(unit.group._use_post_forward_mesh for unit in hook.units)
        found[name] = said
    return found


def collected(rank: int, workers: int) -> dict[str, Any]:
    """Four micro-batches between two replicas, of which the last alone is added up over them: PyTorch's gradients, and those
    with an exchange attached; how many sums between replicas were sent."""
    found: dict[str, Any] = {}
    for name in ("torch", "dense", "int8"):
        model = sharded(hybrid())
        hook = attach(model, name, check_every=1) if name != "torch" else None
        for step in range(4):
            if hook is not None:
                hook.meter.begin_step()
            model.set_requires_all_reduce(step == 3)
            loss(model, rank, step).backward()
            if hook is not None:
                found.setdefault(f"{name} sent", []).append(hook.meter.sent_bytes)
                found.setdefault(f"{name} steps", []).append(hook.step)
        found[name] = gradients(model)
    with _refusals(found, "unused"):
        model = network()
        model[2].add_module("spare", nn.Linear(47, 47))
        for part in (model[0], model[2], model):
            fully_shard(part, mesh=hybrid())
        attach(model, "int8")
        model.set_requires_all_reduce(False)
        loss(model, rank, 0).backward()
        model.set_requires_all_reduce(True)
        used = model[2][:3]
        model[2].forward = lambda x: used(x)
        loss(model, rank, 1).backward()
    return found


def as_predicted(rank: int, workers: int, cases: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Bytes of a step of the network as each strategy shards it: measured, and what the strategy says of this rank."""
    from paceline.strategy import Strategy
    from paceline.training.runs.shard import shard

    found = []
    for case in cases:
        strategy = Strategy.of(world_size=workers, global_batch_size=5 * workers, bucket_bytes=4096, **case)
        model = shard(network(), strategy)
        hook = attach(model, strategy.gradient_exchange, gather_bits=strategy.parallelism.gather_bits)
        hook.meter.begin_step()
        backward(model, rank, 0)
        phases = strategy.exchange_phases(hook.tensors, hook.tensors)
        found.append((hook.meter.sent_bytes, sum(phase.sent(rank) for _, group in phases for phase in group)))
    return found
