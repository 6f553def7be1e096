"""Sharding of a model by a strategy, with FSDP2's units as the prediction counts them."""

from __future__ import annotations

from collections.abc import Collection

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from paceline.errors import UserError
from paceline.strategy import Strategy
from paceline.strategy.sharding import units
from paceline.training.exchanges.gradients.tensor_layout import numbered
from paceline.training.runs.compute.arithmetic import sharded_precision


def shard(model: nn.Module, strategy: Strategy) -> nn.Module:
    """Shard a model in place over all ranks, or over groups of ``shard_devices`` neighbours with copies between them.

    With local steps it is sharded over the ranks of this rank's worker.

    ``zero3`` frees the weights of every unit after its forward pass and gathers them again; ``zero2`` keeps them until the end
    of the backward pass.

    Raises:
        UserError: a sharding that FSDP2 does not run; a parameter that several modules share across units.
    """
    mesh = strategy.parallelism
    if not mesh.sharding.weights:
        raise UserError(f"FSDP2 does not run sharding {mesh.sharding}", "give zero2 or zero3")
    devices = mesh_of(strategy, next(model.parameters()).device.type)
    again = mesh.sharding.gathers_again
    for modules in unit_modules(model, strategy.bucket_bytes):
        policy = sharded_precision(strategy, root=modules == [model])
        units_modules = modules if len(modules) > 1 else modules[0]
        fully_shard(units_modules, mesh=devices, reshard_after_forward=again, mp_policy=policy)
    return model


def mesh_of(strategy: Strategy, device: str) -> DeviceMesh:
    """Return the ranks that together hold the model, by copy and shard, or by shard alone without copies.

    They are all ranks, or those of this rank's worker of local steps. All ranks must call this.
    """
    mesh, workers = strategy.parallelism, strategy.worker_count if strategy.sync_every > 1 else 1
    ranks = dist.get_world_size() // workers
    shards = min(mesh.sharers, ranks) if mesh.sharding.weights else 1
    shape, names = (workers, ranks // shards, shards), ("worker", "replicate", "shard")
    of_job = init_device_mesh(device, shape, mesh_dim_names=names)
    return of_job["shard"] if shards == ranks else of_job["replicate", "shard"] if shards > 1 else of_job["replicate"]


def unit_modules(model: nn.Module, bucket_bytes: int) -> list[list[nn.Module]]:
    """Return the modules of each unit, the root's own last.

    The unit of a module has the parameters that no submodule has taken, so a unit has the largest modules that are entirely in
    it. Parameters of the root itself stay with the root.
    """
    trained = list(numbered((n, p) for n, p in model.named_parameters() if p.requires_grad).values())
    result: list[list[nn.Module]] = []
    for unit in units(trained, bucket_bytes):
        names = {t.name for t in unit}
        modules = _whole_modules(model, names)
        if modules and modules != [model]:
            result.append(modules)
    return [*result, [model]]


def _whole_modules(model: nn.Module, names: Collection[str], prefix: str = "") -> list[nn.Module]:
    """Return the largest modules whose trained parameters are all among ``names``."""
    own = [prefix + name for name, p in model.named_parameters() if p.requires_grad]
    if own and all(name in names for name in own):
        return [model]
    found: list[nn.Module] = []
    for name, child in model.named_children():
        found += [m for m in _whole_modules(child, names, f"{prefix}{name}.") if m not in found]
    return found
