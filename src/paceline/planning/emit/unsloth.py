"""Script of Unsloth with TRL's trainer, which trains all weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.hardware import PRECISIONS
from paceline.planning.emit.job import ONE_ORDER, SCRIPT, EmittedJob, Emitter, Tool, torchrun
from paceline.planning.emit.script import batch_text, check
from paceline.planning.search.space import PLAIN_GRADIENTS, UNDIVIDED
from paceline.strategy.offload import OFFLOAD_CHECKPOINTS
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.sharding import DDP

TOOL = Tool(
    "Unsloth",
    "2026.10.9",
    "unsloth/models/loader.py (FastLanguageModel.from_pretrained); trl 1.16, trl/trainer/sft_config.py; transformers, "
    "training_args.py (OptimizerNames)",
    "names of its arguments; not run",
)


def _write(job: EmittedJob) -> str:
    _check(job)
    lines = [f"# {job.written_for(TOOL)}"]
    lines += [f"# {job.remark}"] if job.remark else []
    lines += [
        f"# {SCRIPT}, which stands for your script, has the network's name or folder and your data.",
        f"# {batch_text(job)}: global batch {job.strategy.global_batch_size:,}",
        "from unsloth import FastLanguageModel",
        *(["import torch"] if not PRECISIONS[job.strategy.precision].dtype else []),
        "from trl import SFTConfig, SFTTrainer",
        f"from {SCRIPT.removesuffix('.py')} import NETWORK, data",
        "",
        "model, tokenizer = FastLanguageModel.from_pretrained(",
        "    NETWORK,",
        *(f"    {name}={value!r}," for name, value in _model_arguments(job)),
        *(["    dtype=torch.float32,"] if not PRECISIONS[job.strategy.precision].dtype else []),
        ")",
        "arguments = SFTConfig(",
        *(f"    {name}={value!r}," for name, value in _training_arguments(job)),
        ")",
        "SFTTrainer(model, arguments, train_dataset=data, processing_class=tokenizer).train()",
    ]
    return "\n".join([*lines, ""])


def _check(job: EmittedJob) -> None:
    """Raise UserError for choices that Unsloth lacks."""
    strategy, mesh = job.strategy, job.strategy.parallelism
    if job.cluster.device.kind != "gpu" or not job.cluster.even:
        raise job.refused(f"nodes of {job.cluster.node_text} {job.cluster.device.name}", "it is written for even nodes of GPUs")
    if job.cluster.world_size > 1 and mesh.sharding is not DDP:
        raise job.refused(f"sharding {mesh.sharding}", "on several devices it has ddp")
    if not strategy.gradient_exchange.is_plain:
        raise job.refused(f"{strategy.gradient_exchange}", "torchrun starts a script with the hook")
    if mesh.recompute_layers:
        raise job.refused(f"recomputation of {mesh.recompute_layers} blocks", "it recomputes all")
    if not OPTIMIZERS[job.optimizer].huggingface:
        known = ", ".join(each.name for each in OPTIMIZERS.values() if each.huggingface)
        raise job.refused(f"optimizer {job.optimizer}", f"it has {known}; --optimizer plans for one of them")
    check(job)


def _model_arguments(job: EmittedJob) -> Iterator[tuple[str, Any]]:
    """Yield arguments of the network's loader."""
    yield "max_seq_length", job.tokens
    yield "load_in_4bit", False
    yield "full_finetuning", True
    yield "use_gradient_checkpointing", _recomputation(job)


def _recomputation(job: EmittedJob) -> bool | str:
    mesh = job.strategy.parallelism
    return "unsloth" if mesh.offload.checkpoints else bool(mesh.recompute)


def _training_arguments(job: EmittedJob) -> Iterator[tuple[str, Any]]:
    """Yield arguments of the trainer."""
    strategy, mesh = job.strategy, job.strategy.parallelism
    yield "per_device_train_batch_size", strategy.micro_batch_size
    yield "gradient_accumulation_steps", mesh.micro_batches
    yield "max_length", job.tokens
    yield "packing", True
    yield "optim", OPTIMIZERS[job.optimizer].huggingface
    yield "bf16", PRECISIONS[strategy.precision].dtype == "bfloat16"
    yield "fp16", PRECISIONS[strategy.precision].dtype == "float16"
    if job.recipe:
        yield "learning_rate", float(f"{job.recipe.lr:.6g}")


def _left(job: EmittedJob) -> str:
    """Name the missing learning rate, for which TRL has a default."""
    return "" if job.recipe else "The file has no learning rate: TRL's default is used until you add learning_rate."


def _launch(job: EmittedJob, place: str) -> str:
    return f"python {place}" if job.cluster.world_size == 1 else torchrun(job, place)


UNSLOTH = Emitter(
    tool=TOOL,
    write=_write,
    launch=_launch,
    precisions=("fp32", "bf16", "fp16"),
    left=_left,
    searched={
        **PLAIN_GRADIENTS,
        **ONE_ORDER,
        **UNDIVIDED,
        "recomputes": ("none", "full"),
        "shardings": (DDP.name,),
        "divided_shardings": (DDP.name,),
    },
    trains_transformers=True,
    offloads=(OFFLOAD_CHECKPOINTS.name,),
)
