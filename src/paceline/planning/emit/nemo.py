"""A recipe of NeMo (Megatron-Bridge) and its overrides, one a line, for its ``scripts/training/run_recipe.py``.

Its recipe ``vanilla_gpt_pretrain_config`` has no settings of a certain network, so that the overrides say all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline.planning.emit.job import EmittedJob, Emitter, Options, Tool, torchrun
from paceline.planning.emit.megatron_core import (
    CP_COMM,
    FSDP,
    PRECISIONS,
    SEARCHED,
    check,
    environment,
    layout,
    recomputed,
    uneven,
)
from paceline.planning.emit.networks.megatron_settings import model_settings, shape_of, unstated
from paceline.planning.emit.rates import peak_rate, rate_remark
from paceline.strategy import OPTIMIZERS

TOOL = Tool(
    "Megatron-Bridge",
    "0.6.2",
    "megatron/bridge/training/config.py and models/gpt_provider.py, the fields of ConfigContainer",
    "its fields, Hydra's parser; not run",
)
MIXED: Mapping[str, str] = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8-current": "bf16_with_fp8_current_scaling_mixed",
    "fp8-block": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
}
"""Its names of precisions (``megatron/bridge/training/mixed_precision.py``)."""
RECIPES: Mapping[str, str] = {
    "nemotron-h-8b": "nemotronh_8b_pretrain_config",
    "nemotron-h-47b": "nemotronh_47b_pretrain_config",
    "nemotron-h-56b": "nemotronh_56b_pretrain_config",
    "nemotron-nano-9b-v2": "nemotron_nano_9b_v2_pretrain_config",
    "nemotron-nano-12b-v2": "nemotron_nano_12b_v2_pretrain_config",
    "nemotron-3-nano-30b-a3b": "nemotron_3_nano_pretrain_config",
    "nemotron-3-super-120b-a12b": "nemotron_3_super_pretrain_config",
    "nemotron-3-ultra-550b-a55b": "nemotron_3_ultra_pretrain_config",
    "qwen-3-next-80b-a3b": "qwen3_next_80b_a3b_pretrain_config",
    "deepseek-v2": "deepseek_v2_pretrain_config",
    "deepseek-v2-lite": "deepseek_v2_lite_pretrain_config",
    "deepseek-v3": "deepseek_v3_pretrain_config",
    "kimi-k2": "kimi_k2_pretrain_config",
}
"""Recipes of networks that the plain GPT recipe cannot express: blocks that scan, latent attention."""
_PLAIN = "vanilla_gpt_pretrain_config"
_OVERLAP = "megatron.bridge.training.comm_overlap.CommOverlapConfig"
_NOT_OF_GPT = ("max_position_embeddings",)
"""Settings that the GPT model takes from others: its positions from the sequence length."""


def _write(job: EmittedJob) -> str:
    """Return the recipe and its overrides, one a line."""
    check(job)
    strategy, mesh = job.strategy, job.strategy.parallelism
    options: Options = [
        *_model(job),
        ("model.tensor_model_parallel_size", mesh.tensor),
        ("model.pipeline_model_parallel_size", mesh.pipeline),
        ("model.context_parallel_size", mesh.context),
        ("model.sequence_parallel", mesh.sequence),
        ("train.micro_batch_size", strategy.micro_batch_size),
        ("train.global_batch_size", strategy.global_batch_size),
        ("model.seq_length", job.tokens),
        ("dataset.seq_length", job.tokens),
    ]
    if job.pipelines_tensors:
        options.append(("comm_overlap", f"{{_target_:{_OVERLAP},tp_comm_overlap:true}}"))
    if mesh.expert_devices > 1:
        options.append(("model.expert_model_parallel_size", mesh.expert))
        options.append(("model.expert_tensor_parallel_size", mesh.expert_tensor))
    if mesh.context > 1:
        options.append(("model.cp_comm_type", CP_COMM[mesh.context_exchange]))
    if uneven(job):
        options.append(("model.pipeline_model_parallel_layout", f"'{layout(job)}'"))  # the quotes are Hydra's
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
    options.append(("mixed_precision", MIXED.get(strategy.precision, "null")))
    options.append(("optimizer.optimizer", "adam" if OPTIMIZERS[job.optimizer].is_adam else "sgd"))
    options += _length(job)
    remarks = (job.written_for(TOOL), job.remark, _unstated(job), rate_remark(job))
    head = "".join(f"# {remark}\n" for remark in remarks if remark) + f"--recipe {_recipe(job)}\n"
    return head + "".join(f"{_quoted(f'{name}={_text(value)}')}\n" for name, value in options)


def _recipe(job: EmittedJob) -> str:
    """Return the recipe of the network: its own, or the plain GPT recipe if that can express it."""
    return RECIPES.get(job.workload.name, _PLAIN)


def _unstated(job: EmittedJob) -> str:
    return "" if job.workload.name in RECIPES else unstated(job)


def _model(job: EmittedJob) -> Iterator[tuple[str, object]]:
    """Yield the network's settings for the plain recipe."""
    shape = shape_of(job)
    if job.workload.name in RECIPES or shape is None:
        return
    if shape.latent is not None or shape.hybrid is not None:
        raise job.refused(job.workload.name, f"of such networks it has recipes for {', '.join(RECIPES)}")
    for name, value in model_settings(job).items():
        if name not in _NOT_OF_GPT:
            yield f"model.{name}", value
    yield "model.should_pad_vocab", True
    yield "tokenizer.vocab_size", shape.vocabulary


def _length(job: EmittedJob) -> Options:
    """Return the length of the run and the rates."""
    options: Options = [("train.train_iters", job.steps)] if job.steps else []
    if (rate := peak_rate(job)) is not None:
        warmup = job.recipe.warmup_steps if job.recipe else job.steps // 100
        options += [("optimizer.lr", f"{rate:g}"), ("optimizer.min_lr", f"{rate / 10:g}")]
        options.append(("scheduler.lr_warmup_iters", warmup))
    return options


def _text(value: object) -> object:
    """Return a value as Hydra reads it."""
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    if isinstance(value, str) and "*" in value and not value.startswith("'"):
        return f"'{value}'"
    return str(value).lower() if isinstance(value, bool) else value


def _quoted(line: str) -> str:
    """Return a line as xargs reads it: quotes and signs within double quotes."""
    return f'"{line}"' if "'" in line else line


def _left(job: EmittedJob) -> str:
    """Name what the file leaves to the user."""
    needs = "" if peak_rate(job) is not None else "The recipe's own is used until you add optimizer.lr."
    data = "It trains on mock data: give dataset.blend and your tokenizer instead."
    return " ".join(filter(None, (rate_remark(job), needs, data)))


def _launch(job: EmittedJob, place: str) -> str:
    return f"grep -v '^#' {place} | {environment(job)}xargs {torchrun(job, 'run_recipe.py')}"


NEMO = Emitter(
    tool=TOOL,
    write=_write,
    launch=_launch,
    precisions=PRECISIONS,
    left=_left,
    searched=SEARCHED,
    trains_transformers=True,
    has_scans=True,  # recipes of Nemotron-H and Qwen3-Next
)
