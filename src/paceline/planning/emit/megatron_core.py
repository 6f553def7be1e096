"""Shared parts of Megatron-Core and NeMo (Megatron-Bridge), which builds on it.

Megatron-FSDP: https://docs.nvidia.com/megatron-core/developer-guide/nightly/user-guide/features/custom_fsdp.html; layouts such
as ``Et*3|t*4|t*3L``: ``megatron/core/transformer/pipeline_parallel_layer_layout.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.planning.emit.job import ONE_ORDER, EmittedJob, Options
from paceline.planning.emit.networks.megatron_settings import shape_of
from paceline.planning.search.space import PLAIN_GRADIENTS
from paceline.strategy import OPTIMIZERS
from paceline.strategy.context_exchange import CONTEXT_RING, CONTEXT_SWAP
from paceline.strategy.pass_order import ONE_FORWARD_ONE_BACKWARD
from paceline.strategy.recompute import MODULES
from paceline.strategy.sharding import ZERO2, ZERO3
from paceline.strategy.strategy import Strategy

FSDP = {ZERO2: "optim_grads", ZERO3: "optim_grads_params"}
"""Megatron-FSDP's strategies of sharding."""
CP_COMM = {CONTEXT_RING: "p2p", CONTEXT_SWAP: "a2a"}
"""Its names of context exchanges."""
PRECISIONS = ("fp32", "bf16", "fp16", "fp8", "fp8-current", "fp8-block", "mxfp8")
SEARCHED: Mapping[str, Any] = {**PLAIN_GRADIENTS, **ONE_ORDER}


def environment(job: EmittedJob) -> str:
    """Return the variables that Megatron-Core's checks ask for, in front of a command (``arguments.py``, ``validate_args``).

    Kernels of products and of exchanges start in order with one connection, except under Megatron-FSDP.
    """
    mesh = job.strategy.parallelism
    one = mesh.tensor * mesh.context > 1 and mesh.sharding not in FSDP
    return "CUDA_DEVICE_MAX_CONNECTIONS=1 " if one else ""


def uneven(job: EmittedJob) -> bool:
    """Return whether parts of the pipeline have different numbers of blocks."""
    return job.strategy.parallelism.pipeline > 1 and len({len(part) for part in job.parts}) > 1


def layout(job: EmittedJob) -> str:
    """Return Megatron's layout of the parts: the embedding, the decoder layers of each, the loss."""
    parts = [f"t*{len(part)}" for part in job.parts]
    return "E" + "|".join(parts) + "L"


def check(job: EmittedJob) -> None:
    """Raise UserError for what Megatron-Core lacks."""
    mesh = job.strategy.parallelism
    if mesh.schedule is not ONE_FORWARD_ONE_BACKWARD:
        raise job.refused(f"schedule {mesh.schedule}", "its pipelines run 1F1B, or 1F1B with virtual stages")
    if uneven(job) and any(layer.kind == "Scan" for layer in job.workload.layers):
        raise job.refused(f"uneven stages of {job.workload.name}", "its layouts of stages are of transformer blocks alone")
    if mesh.sharding in FSDP and mesh.pipeline > 1:
        raise job.refused(f"{mesh.sharding} with a pipeline", "Megatron-FSDP goes with tensor and context alone")
    if mesh.shard_devices and mesh.sharding in FSDP:
        raise job.refused(f"{mesh.sharding} in groups", "Megatron-FSDP is written here without an outer dimension")
    shape = shape_of(job)
    if mesh.expert_devices > 1 and shape is not None and shape.experts is None:
        raise job.refused(f"groups of experts of {mesh.expert_devices}", f"{job.workload.name} has no experts")
    if mesh.recompute.by_operation:
        raise job.refused("recomputation by operation", f"it names modules: {', '.join(MODULES[:-1])}")
    if not (OPTIMIZERS[job.optimizer].is_adam or OPTIMIZERS[job.optimizer].of_torch == "SGD"):
        raise job.refused(f"optimizer {job.optimizer}", "it has adam and sgd")


def recomputed(strategy: Strategy, between: str) -> Options:
    """Return Megatron-Core's options of recomputation; none without it."""
    again = strategy.parallelism.recomputation
    if not again:
        return []
    options: Options = [("recompute_granularity", again.kind)]
    if again.whole_blocks:
        method = ("block", again.layers) if again.layers else ("uniform", 1)
        return [*options, ("recompute_method", method[0]), ("recompute_num_layers", method[1])]
    return [*options, ("recompute_modules", between.join(again.parts))]
