"""Command-line arguments of Megatron-LM's ``pretrain_gpt.py``, one a line: the network, the strategy, and mock data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline import hardware
from paceline.hardware.precision import WIDE
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
from paceline.planning.emit.networks.megatron_settings import Settings, model_settings, unstated
from paceline.planning.emit.rates import peak_rate, rate_remark
from paceline.strategy import OPTIMIZERS

TOOL = Tool(
    "Megatron-LM",
    "0.19.2",
    "megatron/training/arguments.py of megatron-core",
    "`add_megatron_arguments`, `validate_args`; not run",
)
FP8: Mapping[str, str] = {"fp8": "delayed", "fp8-current": "tensorwise", "fp8-block": "blockwise", "mxfp8": "mxfp8"}
"""Megatron-Core's recipes of fp8."""
_RENAMED: Mapping[str, str] = {"layernorm_epsilon": "norm-epsilon", "num_moe_experts": "num-experts"}
"""Arguments with another name than their setting."""
_SWITCHED_OFF: Mapping[str, str] = {
    "add_bias_linear": "disable-bias-linear",
    "share_embeddings_and_output_weights": "untie-embeddings-and-output-weights",
}
"""Arguments that switch a setting off."""
_DATA = ("mock-data", None), ("tokenizer-type", "NullTokenizer")


def _write(job: EmittedJob) -> str:
    """Return command-line arguments, one a line."""
    check(job)
    settings = model_settings(job)
    options = [*_model(settings), *_mesh(job), *_training(job)]
    if settings:
        options += _DATA
    remarks = (job.written_for(TOOL), job.remark, unstated(job), rate_remark(job))
    head = "".join(f"# {remark}\n" for remark in remarks if remark)
    return head + "".join(f"--{name}{'' if value is None else f' {value}'}\n" for name, value in options)


def _model(settings: Settings) -> Iterator[tuple[str, object]]:
    """Yield the arguments of the network."""
    if "num_query_groups" in settings:
        yield "group-query-attention", None
    for name, value in settings.items():
        argument = _RENAMED.get(name, name.replace("_", "-"))
        if name == "gated_linear_unit":
            continue
        if name == "activation_func":
            if settings["gated_linear_unit"]:
                yield "swiglu", None
            elif value == "relu2":
                yield "squared-relu", None
        elif name in _SWITCHED_OFF:
            if not value:
                yield _SWITCHED_OFF[name], None
        elif isinstance(value, bool):
            if value:
                yield argument, None
        elif isinstance(value, tuple):
            yield argument, ",".join(map(str, value))
        else:
            yield argument, f"'{value}'" if isinstance(value, str) and "[" in value else value


def _mesh(job: EmittedJob) -> Options:
    """Return the arguments of the strategy."""
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
    return options + [(name.replace("_", "-"), value) for name, value in recomputed(strategy, " ")]


def _training(job: EmittedJob) -> Options:
    """Return the arguments of precision, optimizer, rate and length of the run."""
    strategy, options = job.strategy, Options()
    if not hardware.PRECISIONS[strategy.precision].full:
        options.append((WIDE if strategy.precision in FP8 else strategy.precision, None))
    if strategy.precision in FP8:
        options += [("fp8-format", "hybrid"), ("fp8-recipe", FP8[strategy.precision])]
    options.append(("optimizer", "adam" if OPTIMIZERS[job.optimizer].is_adam else "sgd"))
    if job.steps:
        options.append(("train-iters", job.steps))
    if (rate := peak_rate(job)) is not None:
        options += [("lr", f"{rate:g}"), ("min-lr", f"{rate / 10:g}"), ("lr-decay-style", "cosine")]
        warmup = job.recipe.warmup_steps if job.recipe else job.steps // 100
        options.append(("lr-warmup-iters", warmup))
    return options


def _left(job: EmittedJob) -> str:
    """Name what Megatron-LM needs and the file leaves to the user."""
    needs = [] if peak_rate(job) is not None else ["--lr, --min-lr, --lr-warmup-iters and --lr-decay-style"]
    needs += [] if job.steps else ["--train-iters"]
    needs += [] if model_settings(job) else ["the arguments of the network, of its tokenizer and of its data"]
    add = f"Add {'; '.join(needs)}." if needs else ""
    data = "It trains on mock data: give --data-path and your tokenizer instead." if model_settings(job) else ""
    return " ".join(filter(None, (rate_remark(job), add, data)))


def _launch(job: EmittedJob, place: str) -> str:
    return f"grep -v '^#' {place} | {environment(job)}xargs {torchrun(job, 'pretrain_gpt.py')}"


MEGATRON = Emitter(
    tool=TOOL,
    write=_write,
    launch=_launch,
    precisions=PRECISIONS,
    left=_left,
    searched=SEARCHED,
    trains_transformers=True,
)
