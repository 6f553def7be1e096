"""Settings of torchtune's recipes for full fine-tuning, on top of a configuration that it ships:
``tune run RECIPE --config CONFIGURATION NAME=VALUE ...``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from paceline.planning.emit.job import ONE_ORDER, EmittedJob, Emitter, Tool, torchrun
from paceline.planning.emit.optimizer import optimizer_arguments
from paceline.planning.emit.script import check
from paceline.planning.search.space import PLAIN_GRADIENTS, UNDIVIDED
from paceline.strategy import BUCKET_BYTES
from paceline.strategy.offload import OFFLOAD_ACTIVATIONS, OFFLOAD_CHECKPOINTS, OFFLOAD_WEIGHTS
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.sharding import SHARDINGS, TORCH_SHARDINGS

TOOL = Tool(
    "torchtune",
    "0.6.1",
    "recipes/configs, recipes/full_finetune_distributed.py and full_finetune_single_device.py",
    "names of its configurations; not run",
)
CONFIGURATIONS: Mapping[str, str] = {
    "gemma-2b": "gemma/2B_full",
    "gemma-7b": "gemma/7B_full",
    "gemma-2-9b": "gemma2/9B_full",
    "gemma-2-27b": "gemma2/27B_full",
    "llama-2-7b": "llama2/7B_full",
    "llama-2-13b": "llama2/13B_full",
    "llama-3-8b": "llama3/8B_full",
    "llama-3-70b": "llama3/70B_full",
    "llama-3.2-1b": "llama3_2/1B_full",
    "llama-3.2-3b": "llama3_2/3B_full",
    "mistral-7b": "mistral/7B_full",
    "phi-3-mini": "phi3/mini_full",
    "phi-4": "phi4/14B_full",
}
"""Configurations of the distributed recipe by network."""
SINGLE = ("llama-3-8b", "llama-3.2-1b", "llama-3.2-3b")
"""Networks with a configuration of the recipe for one device, whose name ends in ``_single_device``."""
_SHARDINGS = tuple(name for name in TORCH_SHARDINGS if SHARDINGS[name].weights)


def _write(job: EmittedJob) -> str:
    _check(job)
    removed = "" if OPTIMIZERS[job.optimizer].of_torch or job.cluster.world_size == 1 else "~optimizer.fused\n"
    head = "".join(f"# {remark}\n" for remark in (job.written_for(TOOL), job.remark) if remark)
    return head + "".join(f"{name}={value}\n" for name, value in _settings(job)) + removed


def _check(job: EmittedJob) -> None:
    """Raise UserError for choices that the recipes lack."""
    strategy, mesh = job.strategy, job.strategy.parallelism
    single = job.cluster.world_size == 1
    known = SINGLE if single else tuple(CONFIGURATIONS)
    if job.workload.name not in known:
        where = "of its recipe for one device" if single else "of its distributed recipe"
        raise job.refused(job.workload.name, f"configurations {where} are for {', '.join(known)}")
    if job.cluster.device.kind != "gpu" or not job.cluster.even:
        raise job.refused(f"nodes of {job.cluster.node_text} {job.cluster.device.name}", "it is written for even nodes of GPUs")
    if not single and (not mesh.sharding.weights or mesh.shard_devices):
        what = f"groups of {mesh.shard_devices}" if mesh.shard_devices else str(mesh.sharding)
        raise job.refused(what, f"its distributed recipe shards weights among all devices: {', '.join(_SHARDINGS)}")
    if not strategy.gradient_exchange.is_plain or mesh.gather_bits or strategy.bucket_bytes != BUCKET_BYTES:
        raise job.refused(f"{strategy.gradient_exchange}", "its recipes exchange gradients as FSDP2 does")
    if mesh.recompute_layers:
        raise job.refused(f"recomputation of {mesh.recompute_layers} blocks", "it recomputes all")
    if not OPTIMIZERS[job.optimizer].python.startswith(("torch.", "bitsandbytes.")):
        raise job.refused(f"optimizer {job.optimizer}", "it is written for those of PyTorch and bitsandbytes")
    check(job)


def _settings(job: EmittedJob) -> Iterator[tuple[str, Any]]:
    """Yield settings by their names in the configuration."""
    strategy, mesh = job.strategy, job.strategy.parallelism
    yield "tokenizer.max_seq_len", job.tokens
    yield "dataset.packed", True
    yield "batch_size", strategy.micro_batch_size
    yield "gradient_accumulation_steps", mesh.micro_batches
    yield "dtype", strategy.precision
    yield "enable_activation_checkpointing", bool(mesh.recompute)
    yield "enable_activation_offloading", mesh.offload.passes
    if job.cluster.world_size > 1:
        yield "fsdp_reshard_after_forward", mesh.sharding.gathers_again
        yield "fsdp_cpu_offload", mesh.offload.weights
    else:
        yield "optimizer_in_bwd", False
    yield "optimizer._component_", OPTIMIZERS[job.optimizer].python
    for name, value in optimizer_arguments(job).items():
        yield f"optimizer.{name}", value
    if job.recipe:
        yield "optimizer.lr", f"{job.recipe.lr:.6g}"


def _left(job: EmittedJob) -> str:
    """Name what comes from the configuration."""
    taken = "Weights, tokenizer and data" if job.recipe else "Weights, tokenizer, data and learning rate"
    return f"{taken} come from torchtune's configuration: set them there."


def _launch(job: EmittedJob, place: str) -> str:
    single = job.cluster.world_size == 1
    name = CONFIGURATIONS.get(job.workload.name, "CONFIGURATION")
    if single:
        return f"grep -v '^#' {place} | xargs tune run full_finetune_single_device --config {name}_single_device"
    options = torchrun(job, f"full_finetune_distributed --config {name}").removeprefix("torchrun ")
    return f"grep -v '^#' {place} | xargs tune run {options}"


TORCHTUNE = Emitter(
    tool=TOOL,
    write=_write,
    launch=_launch,
    precisions=("fp32", "bf16"),
    left=_left,
    searched={
        **PLAIN_GRADIENTS,
        **ONE_ORDER,
        **UNDIVIDED,
        "recomputes": ("none", "full"),
        "shardings": TORCH_SHARDINGS,
        "divided_shardings": TORCH_SHARDINGS,
    },
    trains_transformers=True,
    offloads=(OFFLOAD_WEIGHTS.name, OFFLOAD_ACTIVATIONS.name, OFFLOAD_CHECKPOINTS.name),
)
