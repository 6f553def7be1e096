"""Command-line arguments of Megatron-Core. Names: ``megatron/training/arguments.py`` of NVIDIA/Megatron-LM."""

from __future__ import annotations

from paceline import hardware
from paceline.hardware.precision import WIDE
from paceline.planning.emit.job import EmittedJob, Emitter, Options, torchrun
from paceline.planning.emit.megatron_core import CP_COMM, FSDP, PRECISIONS, SEARCHED, check, layout, recomputed, uneven
from paceline.strategy import OPTIMIZERS

_FP8 = {"fp8": "delayed", "fp8-current": "tensorwise", "fp8-block": "blockwise", "mxfp8": "mxfp8"}
"""Megatron-Core's recipes of fp8."""


def _write(job: EmittedJob) -> str:
    """Return command-line arguments, one a line."""
    check(job)
    strategy, mesh = job.strategy, job.strategy.parallelism
    options: Options = [
        ("tensor-model-parallel-size", mesh.tensor),
        ("pipeline-model-parallel-size", mesh.pipeline),
        ("context-parallel-size", mesh.context),
        ("micro-batch-size", strategy.micro_batch_size),
        ("global-batch-size", strategy.global_batch_size),
        ("seq-length", job.tokens),
    ]
    if mesh.expert_devices > 1:
        options += [("expert-model-parallel-size", mesh.expert), ("expert-tensor-parallel-size", mesh.expert_tensor)]
    if mesh.sequence:
        options.append(("sequence-parallel", None))
    if job.pipelines_tensors:
        options.append(("tp-comm-overlap", None))
    if mesh.context > 1:
        options.append(("cp-comm-type", CP_COMM[mesh.context_exchange]))
    if uneven(job):
        options.append(("pipeline-model-parallel-layout", f"'{layout(job)}'"))
    elif mesh.virtual_stages > 1:
        options.append(("num-virtual-stages-per-pipeline-rank", mesh.virtual_stages))
    if mesh.sharding.shares_out:
        options.append(("use-distributed-optimizer", None))
    if mesh.shard_devices:
        options.append(("num-distributed-optimizer-instances", mesh.data * mesh.context // mesh.shard_devices))
    if mesh.sharding in FSDP:
        options += [
            ("use-megatron-fsdp", None),
            ("data-parallel-sharding-strategy", FSDP[mesh.sharding]),
            ("no-gradient-accumulation-fusion", None),
            ("ckpt-format", "fsdp_dtensor"),
        ]
    if mesh.data * mesh.context > 1:
        options.append(("overlap-grad-reduce", None))
        if mesh.sharding.shares_out:
            options.append(("overlap-param-gather", None))
    options += [(name.replace("_", "-"), value) for name, value in recomputed(strategy, " ")]
    if not hardware.PRECISIONS[strategy.precision].full:
        options.append((WIDE if strategy.precision in _FP8 else strategy.precision, None))
    if strategy.precision in _FP8:
        options += [("fp8-format", "hybrid"), ("fp8-recipe", _FP8[strategy.precision])]
    options.append(("optimizer", "adam" if OPTIMIZERS[job.optimizer].is_adam else "sgd"))
    return "".join(f"--{name}{'' if value is None else f' {value}'}\n" for name, value in options)


def _left(job: EmittedJob) -> str:
    """Name the missing learning rates, without which Megatron-Core does not start."""
    return "The file has no learning rate: add --lr, --min-lr, --lr-warmup-iters and --lr-decay-style."


def _launch(job: EmittedJob, place: str) -> str:
    return f"xargs -a {place} {torchrun(job, 'pretrain_gpt.py')}"


MEGATRON = Emitter(write=_write, launch=_launch, precisions=PRECISIONS, left=_left, searched=SEARCHED, trains_transformers=True)
