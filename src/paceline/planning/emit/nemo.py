"""Overrides of a recipe for NeMo (Megatron-Bridge).

Names: https://docs.nvidia.com/nemo/megatron-bridge/latest/megatron-lm-to-megatron-bridge.html; of precisions:
``megatron.bridge.training.mixed_precision``.
"""

from __future__ import annotations

from paceline.planning.emit.job import EmittedJob, Emitter, Options, torchrun
from paceline.planning.emit.megatron_core import CP_COMM, FSDP, PRECISIONS, SEARCHED, check, layout, recomputed, uneven
from paceline.strategy import OPTIMIZERS


def _write(job: EmittedJob) -> str:
    """Return overrides of a recipe of Megatron-Bridge, one a line."""
    check(job)
    strategy, mesh = job.strategy, job.strategy.parallelism
    options: Options = [
        ("model.tensor_model_parallel_size", mesh.tensor),
        ("model.pipeline_model_parallel_size", mesh.pipeline),
        ("model.context_parallel_size", mesh.context),
        ("model.sequence_parallel", mesh.sequence),
        ("train.micro_batch_size", strategy.micro_batch_size),
        ("train.global_batch_size", strategy.global_batch_size),
        ("model.seq_length", job.tokens),
        ("dataset.sequence_length", job.tokens),
    ]
    if job.pipelines_tensors:
        options.append(("comm_overlap.tp_comm_overlap", True))
    if mesh.expert_devices > 1:
        options.append(("model.expert_model_parallel_size", mesh.expert))
        options.append(("model.expert_tensor_parallel_size", mesh.expert_tensor))
    if mesh.context > 1:
        options.append(("model.cp_comm_type", CP_COMM[mesh.context_exchange]))
    if uneven(job):
        options.append(("model.pipeline_model_parallel_layout", f"'{layout(job)}'"))
    elif mesh.virtual_stages > 1:
        options.append(("model.virtual_pipeline_model_parallel_size", mesh.virtual_stages))
    shared = mesh.sharding.shares_out
    options += [("ddp.use_distributed_optimizer", shared), ("optimizer.use_distributed_optimizer", shared)]
    if mesh.sharding in FSDP:
        options += [("dist.use_megatron_fsdp", True), ("ddp.use_megatron_fsdp", True)]
        options.append(("ddp.data_parallel_sharding_strategy", FSDP[mesh.sharding]))
    if mesh.shard_devices:
        options.append(("ddp.num_distributed_optimizer_instances", mesh.data * mesh.context // mesh.shard_devices))
    replicas = mesh.data * mesh.context > 1
    options += [("ddp.overlap_grad_reduce", replicas), ("ddp.overlap_param_gather", replicas and shared)]
    granularity: Options = recomputed(strategy, ",") or [("recompute_granularity", "null")]
    options += [(f"model.{name}", f"[{value}]" if name == "recompute_modules" else value) for name, value in granularity]
    mixed = {
        "bf16": "bf16_mixed",
        "fp16": "fp16_mixed",
        "fp8": "bf16_with_fp8_delayed_scaling_mixed",
        "fp8-current": "bf16_with_fp8_current_scaling_mixed",
        "fp8-block": "bf16_with_fp8_subchannel_scaling_mixed",
        "mxfp8": "bf16_with_mxfp8_mixed",
    }
    options += [("mixed_precision", mixed[strategy.precision])] if strategy.precision in mixed else []
    options.append(("optimizer.optimizer", "adam" if OPTIMIZERS[job.optimizer].is_adam else "sgd"))
    return "".join(f"{name}={str(value).lower() if isinstance(value, bool) else value}\n" for name, value in options)


def _left(job: EmittedJob) -> str:
    """Name the missing learning rates, for which the recipe has defaults."""
    return "The file has no learning rate: the recipe's own is used until you add optimizer.lr."


def _launch(job: EmittedJob, place: str) -> str:
    return f"xargs -a {place} {torchrun(job, 'train.py')}"


NEMO = Emitter(
    write=_write,
    launch=_launch,
    precisions=PRECISIONS,
    left=_left,
    searched=SEARCHED,
    trains_transformers=True,
    has_scans=True,  # recipes of Nemotron-H and Qwen3-Next
)
