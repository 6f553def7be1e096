"""JSON file of DeepSpeed, which fits any network. It does not contain the length of a sequence."""

from __future__ import annotations

import json
from typing import Any

from paceline.hardware import PRECISIONS
from paceline.planning.emit.job import CHECKPOINTS_BLOCKS, ONE_ORDER, SCRIPT, EmittedJob, Emitter, Tool
from paceline.planning.emit.optimizer import optimizer_arguments, rate_factor
from paceline.planning.emit.rates import peak_rate, rate_remark
from paceline.planning.search.space import PLAIN_GRADIENTS, UNDIVIDED
from paceline.strategy.offload import OFFLOAD_OPTIMIZER, OFFLOAD_WEIGHTS
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.recompute import FULL_RECOMPUTE, NO_RECOMPUTE
from paceline.strategy.sharding import DDP, DISTRIBUTED, ZERO1, ZERO2, ZERO3

TOOL = Tool(
    "DeepSpeed",
    "0.19.8",
    "https://www.deepspeed.ai/docs/config-json/, https://www.deepspeed.ai/tutorials/autotp-training/",
    "`DeepSpeedConfig`; toys trained",
)
REMARK = "_comment"
"""Key of the remark: JSON has no comments, and DeepSpeed and the Trainer ignore unknown keys."""
STAGES = {DDP: 0, ZERO1: 1, DISTRIBUTED: 1, ZERO2: 2, ZERO3: 3}
"""Stages of ZeRO."""
AUTO = "auto"
"""A value that the Trainer and Accelerate of Hugging Face fill in: https://huggingface.co/docs/transformers/deepspeed."""

CHECKPOINTING = ("partition_activations", "contiguous_memory_optimization", "cpu_checkpointing")
"""Options of ``deepspeed.checkpointing``, all off by default: deepspeed/runtime/activation_checkpointing/config.py."""


def _write(job: EmittedJob) -> str:
    """Format a JSON file."""
    strategy, mesh = job.strategy, job.strategy.parallelism
    if mesh.expert_devices > 1:
        raise job.refused("groups of experts", "the model's code makes them (deepspeed.moe)")
    if mesh.pipeline > 1:
        raise job.refused(f"a pipeline of {mesh.pipeline}", "its stages are made in the model's code (PipelineModule)")
    if mesh.context > 1:
        raise job.refused(f"context parallelism of {mesh.context}", "it is made in the model's code (Ulysses)")
    if mesh.sequence:
        raise job.refused("sequence parallelism with tensor", "AutoTP divides products alone")
    if mesh.tensor > 1 and mesh.sharding is ZERO3:
        raise job.refused("zero3 with tensor parallelism", "AutoTP goes with ZeRO stages 0 to 2")
    if mesh.recompute.parts:
        raise job.refused(f"recomputation {mesh.recompute}", "the model's code chooses the parts of a block")
    if mesh.recompute_layers:
        raise job.refused(f"recomputation of {mesh.recompute_layers} blocks", "transformers recomputes all")
    if mesh.shard_devices:
        raise job.refused(f"shards in groups of {mesh.shard_devices}", "its stages share out among all devices")
    optimizer = OPTIMIZERS[job.optimizer].deepspeed
    if not optimizer:
        has = ", ".join(sorted({each.deepspeed for each in OPTIMIZERS.values() if each.deepspeed}))
        raise job.refused(f"optimizer {job.optimizer}", f"its file has {has}; --optimizer plans for one of them")
    if mesh.offload.optimizer and mesh.sharding is DDP:
        raise job.refused(f"offload {mesh.offload} with ddp", "its stage 0 has none; give zero1, zero2 or zero3")
    config: dict[str, Any] = {
        REMARK: " ".join(filter(None, (job.written_for(TOOL), _recomputed(job), job.remark))),
        "train_batch_size": strategy.global_batch_size,
        "train_micro_batch_size_per_gpu": strategy.micro_batch_size,
        "gradient_accumulation_steps": mesh.micro_batches,
        "zero_optimization": {"stage": STAGES[mesh.sharding], "overlap_comm": True},
        "optimizer": {"type": optimizer, "params": _params(job)},
    }
    if not PRECISIONS[strategy.precision].full:
        config[strategy.precision] = {"enabled": True}
    zero = config["zero_optimization"]
    for name, offloaded in (("offload_optimizer", mesh.offload.optimizer), ("offload_param", mesh.offload.weights)):
        if offloaded:
            zero[name] = {"device": "cpu", "pin_memory": True}
    if mesh.recompute:
        config["activation_checkpointing"] = dict.fromkeys(CHECKPOINTING, False)
    if mesh.tensor > 1:
        config["tensor_parallel"] = {"autotp_size": mesh.tensor}
    return json.dumps(config, indent=2) + "\n"


def _recomputed(job: EmittedJob) -> str:
    """Say which line of the script recomputes activations; empty without recomputation."""
    if not job.strategy.parallelism.recompute:
        return ""
    section = "activation_checkpointing has options of deepspeed.checkpointing and recomputes nothing by itself"
    return f"In {SCRIPT}, before deepspeed.initialize: {CHECKPOINTS_BLOCKS}. The section {section}."


def _params(job: EmittedJob) -> dict[str, object]:
    """Return the rate and the other options of the optimizer. Without a rate DeepSpeed uses its default, 1e-3."""
    rate = peak_rate(job)
    return {"lr": AUTO if rate is None else rate, **optimizer_arguments(job)}


def _left(job: EmittedJob) -> str:
    """Describe the recomputation and the learning rates that the file cannot hold."""
    return " ".join(filter(None, (_recomputed(job), _rates(job))))


def _rates(job: EmittedJob) -> str:
    """Describe the learning rates that the file cannot hold."""
    if job.recipe is None and peak_rate(job) is not None:
        return f'{rate_remark(job)} Write "{AUTO}" to take the rate of the Trainer or of Accelerate.'
    if job.recipe is None:
        auto = f'The learning rate is "{AUTO}" in the file: no source has one for this network, optimizer and batch.'
        return f"{auto} Write yours there; the Trainer and Accelerate of Hugging Face fill in their own."
    if job.recipe.warmup_steps or job.recipe.power:
        factor = f"LambdaLR(optimizer, {rate_factor(job.recipe)})"
        return f"The file has the peak rate alone; {SCRIPT} gives deepspeed.initialize lr_scheduler=lambda optimizer: {factor}."
    return ""


def _launch(job: EmittedJob, place: str) -> str:
    nodes = f"--hostfile HOSTS --num_nodes {job.cluster.num_nodes} " if job.cluster.num_nodes > 1 else ""
    return f"deepspeed {nodes}--num_gpus {job.cluster.devices_per_node} {SCRIPT} --deepspeed --deepspeed_config {place}"


DEEPSPEED = Emitter(
    tool=TOOL,
    write=_write,
    launch=_launch,
    precisions=("fp32", "bf16", "fp16"),
    left=_left,
    searched={**PLAIN_GRADIENTS, **ONE_ORDER, "recomputes": (NO_RECOMPUTE.name, FULL_RECOMPUTE.name), **UNDIVIDED},
    offloads=(OFFLOAD_OPTIMIZER.name, OFFLOAD_WEIGHTS.name),
)
