"""Configuration file of Hugging Face Accelerate."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.hardware import PRECISIONS
from paceline.planning.emit.job import CHECKPOINTS_BLOCKS, PORT, SCRIPT, EmittedJob, Emitter, Tool
from paceline.planning.emit.optimizer import import_lines, optimizer_lines
from paceline.planning.emit.script import attach_line, batch_text, check, hooked
from paceline.planning.emit.torchrun import SEARCHED
from paceline.strategy import BUCKET_BYTES
from paceline.strategy.sharding import DDP, ZERO1

TOOL = Tool(
    "Accelerate",
    "1.15.0",
    "accelerate/commands/config/config_args.py (ClusterConfig), accelerate/commands/launch.py",
    "the parser of `accelerate launch`; toys trained",
)
Table = dict[str, object]


def _write(job: EmittedJob) -> str:
    _check(job)
    many = job.cluster.num_nodes > 1
    config: Table = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _kind(job),
        "mixed_precision": job.strategy.precision if PRECISIONS[job.strategy.precision].dtype else "no",
        "num_machines": job.cluster.num_nodes,
        "num_processes": job.cluster.world_size,
        "machine_rank": 0,
        "main_process_port": PORT,
        "rdzv_backend": "c10d" if many else "static",
        "main_training_function": "main",
        "use_cpu": False,
        **_sharded(job),
    }
    remarks = "".join(f"#   {line}\n" for line in (f"In {SCRIPT}, which stands for your script:", *_lines(job)))
    head = f"# {job.written_for(TOOL)}\n" + (f"# {job.remark}\n" if job.remark else "")
    if many:
        head += "# Run it on each node: RANK is the number of the node, from 0, HEAD the host name of the first.\n"
    return f"{head}{remarks}{_yaml(config)}"


def _check(job: EmittedJob) -> None:
    """Raise UserError for choices that a script under Accelerate cannot run."""
    check(job)
    strategy, mesh = job.strategy, job.strategy.parallelism
    if mesh.recompute_layers:
        raise job.refused(f"recomputation of {mesh.recompute_layers} blocks", "it recomputes all")
    if mesh.sharding is ZERO1 and hooked(job):
        raise job.refused(
            f"{strategy.gradient_exchange} with zero1", "DeepSpeed reduces gradients itself; torchrun supports both together"
        )
    if mesh.sharding is ZERO1 and PRECISIONS[strategy.precision].truncates:
        raise job.refused("zero1 with tf32", "zero1 is DeepSpeed's there, which is written for fp32, bf16 and fp16")


def _kind(job: EmittedJob) -> str:
    if job.cluster.world_size == 1:
        return "NO"
    return {DDP: "MULTI_GPU", ZERO1: "DEEPSPEED"}.get(job.strategy.parallelism.sharding, "FSDP")


def _sharded(job: EmittedJob) -> Table:
    """Return the tables of sharding and of divided layers."""
    strategy, mesh = job.strategy, job.strategy.parallelism
    kind = _kind(job)
    if kind == "DEEPSPEED":
        return {"deepspeed_config": {"zero_stage": 1, "gradient_accumulation_steps": mesh.micro_batches}}
    if kind != "FSDP":
        return {}
    blocks = job.workload.attends and strategy.bucket_bytes == BUCKET_BYTES
    policy: Table = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    if not blocks:
        policy = {"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": strategy.bucket_bytes // 4}
    table: Table = {
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": mesh.sharding.gathers_again,
            **policy,
            "fsdp_activation_checkpointing": mesh.recompute.whole_blocks,
        }
    }
    if mesh.shard_devices:
        table["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": mesh.data // mesh.shard_devices,
            "parallelism_config_dp_shard_size": mesh.shard_devices,
        }
    return table


def _lines(job: EmittedJob) -> Iterator[str]:
    """Yield lines of the user's script for choices without a field in the file."""
    strategy, mesh = job.strategy, job.strategy.parallelism
    yield from import_lines(job, hooked(job))
    if PRECISIONS[strategy.precision].truncates:
        yield 'torch.set_float32_matmul_precision("high")'
    if mesh.recompute and _kind(job) != "FSDP":
        yield f"{CHECKPOINTS_BLOCKS}  # the trainers of transformers and TRL: gradient_checkpointing=True"
    yield f"accelerator = Accelerator({_arguments(job)})"
    yield from optimizer_lines(job)
    if job.recipe:
        yield "# The scheduler stays out of it, which would step it once a process."
    yield "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)"
    if hooked(job):
        line = attach_line(strategy)
        yield f"{line[:-1]}, grad_scaler=accelerator.scaler)" if PRECISIONS[strategy.precision].scales_loss else line
    if mesh.sharding.weights and mesh.micro_batches > 1:
        yield "# gradients are exchanged after each micro batch: GradientAccumulationPlugin(sync_each_batch=True)"
    yield f"# {batch_text(job)}: global batch {strategy.global_batch_size:,}"


def _arguments(job: EmittedJob) -> str:
    strategy, mesh = job.strategy, job.strategy.parallelism
    given = [f"gradient_accumulation_steps={mesh.micro_batches}"] if mesh.micro_batches > 1 else []
    if _kind(job) == "MULTI_GPU" and strategy.bucket_bytes != BUCKET_BYTES:
        given.append(f"kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb={strategy.bucket_bytes / 2**20:g})]")
    return ", ".join(given)


def _yaml(config: Mapping[str, Any]) -> str:
    """Format two levels of YAML; each value is JSON, which YAML includes."""
    lines = []
    for name, value in config.items():
        lines.append(f"{name}:" if isinstance(value, Mapping) else f"{name}: {json.dumps(value)}")
        if isinstance(value, Mapping):
            lines += [f"  {inner}: {json.dumps(of)}" for inner, of in value.items()]
    return "\n".join(lines) + "\n"


def _launch(job: EmittedJob, place: str) -> str:
    rank = '--machine_rank "$RANK" --main_process_ip "$HEAD" ' if job.cluster.num_nodes > 1 else ""
    return f"accelerate launch --config_file {place} {rank}{SCRIPT}"


ACCELERATE = Emitter(
    tool=TOOL,
    write=_write,
    launch=_launch,
    precisions=("fp32", "tf32", "bf16", "fp16"),
    searched=SEARCHED,
    runs_script=True,
)
