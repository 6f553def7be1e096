"""A strategy as the options of another framework: Megatron-Core, torchtitan, DeepSpeed, NeMo (Megatron-Bridge).

What is written is the strategy and the length of a sequence: mesh, batches, sharding, recomputation, precision, optimizer. The
network and the data are the user's, and so is the length with DeepSpeed, whose file has no option for it. A choice that a
framework does not have is refused with its reason.

Names of options:

- Megatron-Core: ``megatron/training/arguments.py`` of NVIDIA/Megatron-LM; Megatron-FSDP:
  https://docs.nvidia.com/megatron-core/developer-guide/nightly/user-guide/features/custom_fsdp.html; layouts such as
  ``Et*3|t*4|t*3L``: ``megatron/core/transformer/pipeline_parallel_layer_layout.py``.
- torchtitan: ``torchtitan/config/job_config.py``, ``Parallelism``, ``Training``, ``ActivationCheckpoint``; pipelines of named
  modules: ``module_fqns_per_model_part``. It refuses DDP beside other dimensions (``models/llama3/infra/parallelize.py``).
  Groups of experts: ``torchtitan/distributed/parallel_dims.py``.
- DeepSpeed: https://www.deepspeed.ai/docs/config-json/ and AutoTP training, https://www.deepspeed.ai/tutorials/autotp-training/.
- NeMo: https://docs.nvidia.com/nemo/megatron-bridge/latest/megatron-lm-to-megatron-bridge.html (overrides of a recipe);
  names of precisions: ``megatron.bridge.training.mixed_precision``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from paceline.errors import UserError, check_name
from paceline.prediction.stages import block_begins, part_sizes
from paceline.strategy.parallelism import Parallelism
from paceline.strategy.recompute import BY_OPERATION, MODULES
from paceline.strategy.sharding import DISTRIBUTED
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

Options = list[tuple[str, object]]
"""Names and values; a value of None is an option without one."""
_FSDP = {"zero2": "optim_grads", "zero3": "optim_grads_params"}
_PRECISIONS = {
    "megatron": ("fp32", "bf16", "fp16", "fp8", "fp8-current", "fp8-block", "mxfp8"),
    "nemo": ("fp32", "bf16", "fp16", "fp8", "fp8-current", "fp8-block", "mxfp8"),
    "torchtitan": ("fp32", "bf16", "fp8-current"),
    "deepspeed": ("fp32", "bf16", "fp16"),
}
"""Precisions by framework; torchtitan's float8 has one scale a tensor, of the tensor itself."""
_TOKENS = re.compile(r"sequence of (\d+) tokens")
_WHERE = "ask for another framework, or name sizes that it has"


def emit(framework: str, strategy: Strategy, workload: Workload) -> str:
    """``strategy`` for ``workload`` as text that the framework reads: arguments, TOML, JSON or overrides.

    Raises:
        UserError: no such framework; a choice that it does not have.
    """
    check_name("framework", framework, FRAMEWORKS)
    exchange = strategy.gradient_exchange
    if exchange.compression != "dense":
        raise _refused(framework, f"compression {exchange.compression}", "gradients travel as they are")
    if exchange.exchange != "allreduce":
        raise _refused(framework, f"exchange {exchange.exchange}", "gradients travel by all-reduce or reduce-scatter")
    mesh = strategy.parallelism
    if strategy.precision not in _PRECISIONS[framework]:
        raise _refused(framework, f"precision {strategy.precision}", f"here it has {', '.join(_PRECISIONS[framework])}")
    if mesh.offload != "none":
        raise _refused(framework, f"offload {mesh.offload}", "what lies in the host's memory is not written here")
    if mesh.gather_bits or mesh.gradient_bits:
        raise _refused(framework, "bits of what travels", "widths of weights and gradients on the wire are not written here")
    if mesh.expert_devices > 1 and framework == "deepspeed":
        raise _refused(framework, "groups of experts", "the model's code makes them (deepspeed.moe)")
    if framework != "deepspeed":  # which wraps any network, and whose file says nothing of it
        if not (workload.attends and _TOKENS.fullmatch(workload.sample)):
            raise _refused(framework, workload.name, "it trains transformers on sequences of tokens")
        if workload.frozen:
            raise _refused(framework, f"the adapters of {workload.name}", "what is written here trains all weights")
    return FRAMEWORKS[framework](strategy, workload)


def _refused(framework: str, choice: str, why: str) -> UserError:
    return UserError(f"{framework} has no option for {choice}: {why}", _WHERE)


def _tokens(workload: Workload) -> int:
    """Tokens of one sequence."""
    length = _TOKENS.fullmatch(workload.sample)
    assert length
    return int(length[1])


def _parts(strategy: Strategy, workload: Workload) -> list[range]:
    """Blocks of each part of the pipeline, in the order of the network."""
    mesh = strategy.parallelism
    ends = mesh.first_stage_layers, mesh.last_stage_layers
    sizes = part_sizes(len(block_begins(workload)), mesh.pipeline, mesh.virtual_stages, ends)
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def _uneven(strategy: Strategy, workload: Workload) -> bool:
    return strategy.parallelism.pipeline > 1 and len({len(part) for part in _parts(strategy, workload)}) > 1


def _layout(strategy: Strategy, workload: Workload) -> str:
    """Megatron's layout of the parts: the embedding, so many decoder layers each, the loss."""
    parts = [f"t*{len(part)}" for part in _parts(strategy, workload)]
    return "E" + "|".join(parts) + "L"


def _of_megatron(framework: str, strategy: Strategy) -> None:
    """Raises UserError for what Megatron-Core does not have."""
    mesh = strategy.parallelism
    if mesh.schedule != "1f1b":
        raise _refused(framework, f"schedule {mesh.schedule}", "its pipelines run 1F1B, or 1F1B with virtual stages")
    if mesh.sharding in _FSDP and mesh.pipeline > 1:
        raise _refused(framework, f"{mesh.sharding} with a pipeline", "Megatron-FSDP goes with tensor and context alone")
    if mesh.shard_devices and mesh.sharding in _FSDP:
        raise _refused(framework, f"{mesh.sharding} in groups", "Megatron-FSDP is written here without an outer dimension")
    if BY_OPERATION in mesh.recomputation.modules:
        raise _refused(framework, "recomputation by operation", f"it names modules: {', '.join(MODULES[:-1])}")
    if strategy.optimizer in ("lars", "lamb"):
        raise _refused(framework, f"optimizer {strategy.optimizer}", "it has adam and sgd")


def _recomputed(strategy: Strategy, between: str) -> Options:
    """Megatron-Core's options of recomputation; none without it."""
    again = strategy.parallelism.recomputation
    if again.kind == "none":
        return []
    options: Options = [("recompute_granularity", again.kind)]
    if again.kind == "full":
        method = ("block", again.layers) if again.layers else ("uniform", 1)
        return [*options, ("recompute_method", method[0]), ("recompute_num_layers", method[1])]
    return [*options, ("recompute_modules", between.join(again.modules))]


def _megatron(strategy: Strategy, workload: Workload) -> str:
    """Command-line arguments, one a line."""
    _of_megatron("megatron", strategy)
    mesh = strategy.parallelism
    options: Options = [
        ("tensor-model-parallel-size", mesh.tensor),
        ("pipeline-model-parallel-size", mesh.pipeline),
        ("context-parallel-size", mesh.context),
        ("micro-batch-size", strategy.micro_batch_size),
        ("global-batch-size", strategy.global_batch_size),
        ("seq-length", _tokens(workload)),
    ]
    if mesh.expert_devices > 1:
        options += [("expert-model-parallel-size", mesh.expert), ("expert-tensor-parallel-size", mesh.expert_tensor)]
    if mesh.sequence:
        options.append(("sequence-parallel", None))
    if mesh.context > 1:
        options.append(("cp-comm-type", _CP_COMM[mesh.context_exchange]))
    if _uneven(strategy, workload):
        options.append(("pipeline-model-parallel-layout", f"'{_layout(strategy, workload)}'"))
    elif mesh.virtual_stages > 1:
        options.append(("num-virtual-stages-per-pipeline-rank", mesh.virtual_stages))
    if mesh.sharding != "ddp":
        options.append(("use-distributed-optimizer", None))
    if mesh.shard_devices:
        options.append(("num-distributed-optimizer-instances", mesh.data * mesh.context // mesh.shard_devices))
    if mesh.sharding in _FSDP:
        options += [
            ("use-megatron-fsdp", None),
            ("data-parallel-sharding-strategy", _FSDP[mesh.sharding]),
            ("no-gradient-accumulation-fusion", None),
            ("ckpt-format", "fsdp_dtensor"),
        ]
    if mesh.data * mesh.context > 1:
        options.append(("overlap-grad-reduce", None))
        if mesh.sharding != "ddp":
            options.append(("overlap-param-gather", None))
    options += [(name.replace("_", "-"), value) for name, value in _recomputed(strategy, " ")]
    options += [("bf16" if strategy.precision in _FP8 else strategy.precision, None)] if strategy.precision != "fp32" else []
    if strategy.precision in _FP8:
        options += [("fp8-format", "hybrid"), ("fp8-recipe", _FP8[strategy.precision])]
    options.append(("optimizer", "adam" if strategy.optimizer in ("", "adam", "adamw") else "sgd"))
    return "".join(f"--{name}{'' if value is None else f' {value}'}\n" for name, value in options)


def _nemo(strategy: Strategy, workload: Workload) -> str:
    """Overrides of a recipe of Megatron-Bridge, one a line."""
    _of_megatron("nemo", strategy)
    mesh = strategy.parallelism
    options: Options = [
        ("model.tensor_model_parallel_size", mesh.tensor),
        ("model.pipeline_model_parallel_size", mesh.pipeline),
        ("model.context_parallel_size", mesh.context),
        ("model.sequence_parallel", mesh.sequence),
        ("train.micro_batch_size", strategy.micro_batch_size),
        ("train.global_batch_size", strategy.global_batch_size),
        ("model.seq_length", _tokens(workload)),
        ("dataset.sequence_length", _tokens(workload)),
    ]
    if mesh.expert_devices > 1:
        options.append(("model.expert_model_parallel_size", mesh.expert))
        options.append(("model.expert_tensor_parallel_size", mesh.expert_tensor))
    if mesh.context > 1:
        options.append(("model.cp_comm_type", _CP_COMM[mesh.context_exchange]))
    if _uneven(strategy, workload):
        options.append(("model.pipeline_model_parallel_layout", f"'{_layout(strategy, workload)}'"))
    elif mesh.virtual_stages > 1:
        options.append(("model.virtual_pipeline_model_parallel_size", mesh.virtual_stages))
    shared = mesh.sharding != "ddp"
    options += [("ddp.use_distributed_optimizer", shared), ("optimizer.use_distributed_optimizer", shared)]
    if mesh.sharding in _FSDP:
        options += [("dist.use_megatron_fsdp", True), ("ddp.use_megatron_fsdp", True)]
        options.append(("ddp.data_parallel_sharding_strategy", _FSDP[mesh.sharding]))
    if mesh.shard_devices:
        options.append(("ddp.num_distributed_optimizer_instances", mesh.data * mesh.context // mesh.shard_devices))
    replicas = mesh.data * mesh.context > 1
    options += [("ddp.overlap_grad_reduce", replicas), ("ddp.overlap_param_gather", replicas and shared)]
    granularity: Options = _recomputed(strategy, ",") or [("recompute_granularity", "null")]
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
    options.append(("optimizer.optimizer", "adam" if strategy.optimizer in ("", "adam", "adamw") else "sgd"))
    return "".join(f"{name}={str(value).lower() if isinstance(value, bool) else value}\n" for name, value in options)


_CP_COMM = {"ring": "p2p", "all_to_all": "a2a"}


def _torchtitan(strategy: Strategy, workload: Workload) -> str:
    """A part of a TOML file."""
    mesh, whole = strategy.parallelism, "torchtitan"
    if mesh.sharding in ("zero1", DISTRIBUTED):
        raise _refused(whole, mesh.sharding, "it has DDP and FSDP (zero2, zero3)")
    if mesh.sharding == "ddp" and mesh.model_devices > 1 and mesh.data > 1:
        raise _refused(whole, "ddp beside tensor, context or pipeline", "its DDP goes alone; share out with zero2 or zero3")
    if mesh.tensor > 1 and not mesh.sequence:
        raise _refused(whole, "tensor without sequence parallelism", "its tensor parallelism comes with it")
    if mesh.context_exchange != "ring":
        raise _refused(whole, f"context exchange {mesh.context_exchange}", "keys and values pass around a ring")
    if strategy.optimizer not in ("", "adam", "adamw"):
        raise _refused(whole, f"optimizer {strategy.optimizer}", "it has Adam and AdamW")
    again = mesh.recomputation
    if again.layers or again.modules not in ((), (BY_OPERATION,)):
        raise _refused(whole, f"recomputation {mesh.recompute} of some layers or modules", "it has full and selective:op")
    if mesh.sharers % mesh.context:
        raise _refused(whole, f"shards in groups of {mesh.sharers}", f"its groups hold whole contexts of {mesh.context}")
    shared = mesh.sharding != "ddp"
    sharers = mesh.sharers // mesh.context
    if mesh.expert_devices > 1:
        _check_titan_experts(mesh, sharers)
    tables: dict[str, dict[str, object]] = {
        "parallelism": {
            "data_parallel_replicate_degree": mesh.data // sharers if shared else mesh.data,
            "data_parallel_shard_degree": sharers if shared else 1,
            "tensor_parallel_degree": mesh.tensor,
            "context_parallel_degree": mesh.context,
            "pipeline_parallel_degree": mesh.pipeline,
        },
        "training": {
            "local_batch_size": strategy.micro_batch_size * (mesh.micro_batches if mesh.pipeline > 1 else 1),
            "global_batch_size": strategy.global_batch_size,
            "seq_len": _tokens(workload),
        },
        "activation_checkpoint": {"mode": again.kind, **({"selective_ac_option": "op"} if again.modules else {})},
        "optimizer": {"name": "Adam" if strategy.optimizer == "adam" else "AdamW"},
    }
    if shared:
        tables["parallelism"]["fsdp_reshard_after_forward"] = "always" if mesh.sharding == "zero3" else "never"
        tables["training"]["mixed_precision_param"] = "float32" if strategy.precision == "fp32" else "bfloat16"
    if mesh.expert_devices > 1:
        tables["parallelism"]["expert_parallel_degree"] = mesh.expert
        tables["parallelism"]["expert_tensor_parallel_degree"] = mesh.expert_tensor
    if mesh.context > 1:
        tables["parallelism"]["context_parallel_rotate_method"] = "alltoall"
    if mesh.pipeline > 1:
        looped = {"1f1b": "Interleaved1F1B" if mesh.virtual_stages > 1 else "1F1B", "gpipe": "GPipe"}
        if mesh.schedule not in looped:
            raise _refused(whole, f"schedule {mesh.schedule}", f"of this kind it has {', '.join(looped)}")
        tables["parallelism"]["pipeline_parallel_schedule"] = looped[mesh.schedule]
        tables["parallelism"]["pipeline_parallel_microbatch_size"] = strategy.micro_batch_size
        tables["parallelism"]["module_fqns_per_model_part"] = list(_modules(strategy, workload))
    if strategy.precision == "fp8-current":
        tables["model"] = {"converters": ["float8"]}
    return "\n".join(_toml(tables))


def _check_titan_experts(mesh: Parallelism, sharers: int) -> None:
    """Raises UserError for groups of experts that are not whole contexts, and where experts are not divided by their width
    whole tensor groups, of devices that share out one copy (torchtitan, ``parallel_dims.py``)."""
    if mesh.sharding == "ddp":
        raise _refused("torchtitan", "groups of experts with ddp", "they are of devices that share out; give zero2 or zero3")
    if mesh.expert_tensor not in (1, mesh.tensor):
        raise _refused("torchtitan", f"experts divided among {mesh.expert_tensor}", f"it has 1, or tensor's {mesh.tensor}")
    least = mesh.context * (mesh.tensor if mesh.expert_tensor == 1 else 1)
    if mesh.expert % least or sharers * least % mesh.expert:
        raise _refused(
            "torchtitan", f"groups of experts of {mesh.expert}", f"it has multiples of {least} that divide {sharers * least}"
        )


def _modules(strategy: Strategy, workload: Workload) -> Iterator[list[str]]:
    """Modules of each part, by torchtitan's names."""
    parts = _parts(strategy, workload)
    for number, part in enumerate(parts):
        before = ["tok_embeddings"] if number == 0 else []
        after = ["norm", "output"] if number == len(parts) - 1 else []
        yield [*before, *(f"layers.{block}" for block in part), *after]


def _toml(tables: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    for name, values in tables.items():
        yield f"[{name}]"
        for key, value in values.items():
            yield f"{key} = {json.dumps(value)}"
        yield ""


def _deepspeed(strategy: Strategy, workload: Workload) -> str:
    """A JSON file."""
    mesh, whole = strategy.parallelism, "deepspeed"
    if mesh.pipeline > 1:
        raise _refused(whole, f"a pipeline of {mesh.pipeline}", "its stages are made in the model's code (PipelineModule)")
    if mesh.context > 1:
        raise _refused(whole, f"context parallelism of {mesh.context}", "it is made in the model's code (Ulysses)")
    if mesh.sequence:
        raise _refused(whole, "sequence parallelism beside tensor", "AutoTP divides products alone")
    if mesh.tensor > 1 and mesh.sharding == "zero3":
        raise _refused(whole, "zero3 with tensor parallelism", "AutoTP goes with ZeRO stages 0 to 2")
    if mesh.recompute != "none":
        raise _refused(whole, f"recomputation ({mesh.recompute})", "the model's code turns it on")
    if mesh.shard_devices:
        raise _refused(whole, f"shards in groups of {mesh.shard_devices}", "its stages share out among all devices")
    types = {"": "AdamW", "adam": "Adam", "adamw": "AdamW", "lamb": "Lamb", "sgd": "SGD", "momentum": "SGD"}
    if strategy.optimizer not in types:
        raise _refused(whole, f"optimizer {strategy.optimizer}", f"it has {', '.join(sorted(set(types.values())))}")
    config: dict[str, object] = {
        "train_batch_size": strategy.global_batch_size,
        "train_micro_batch_size_per_gpu": strategy.micro_batch_size,
        "gradient_accumulation_steps": mesh.micro_batches,
        "zero_optimization": {"stage": _STAGES[mesh.sharding], "overlap_comm": True},
        "optimizer": {"type": types[strategy.optimizer]},
    }
    if strategy.precision != "fp32":
        config[strategy.precision] = {"enabled": True}
    if mesh.tensor > 1:
        config["tensor_parallel"] = {"autotp_size": mesh.tensor}
    return json.dumps(config, indent=2) + "\n"


_ONE_ORDER: Mapping[str, Any] = {"schedules": ("1f1b",), "node_groups": False, "offloads": False}
SEARCHED: Mapping[str, Mapping[str, Any]] = {
    "megatron": _ONE_ORDER,
    "nemo": _ONE_ORDER,
    "torchtitan": {
        "schedules": ("1f1b",),
        "offloads": False,
        "recomputes": ("none", "selective:op", "full"),
        "shardings": ("ddp", "zero2", "zero3"),
        "divided_shardings": ("zero2", "zero3"),
    },
    "deepspeed": {
        **_ONE_ORDER,
        "recomputes": ("none",),
        **dict.fromkeys(("tensors", "contexts", "pipelines", "experts"), (1,)),
    },
}
"""Fields of ``Space`` with what a plan tries that is written for a framework, where nobody names them: what is refused is left
out before."""
_FP8 = {"fp8": "delayed", "fp8-current": "tensorwise", "fp8-block": "blockwise", "mxfp8": "mxfp8"}
"""Megatron-Core's recipes of fp8."""
_STAGES = {"ddp": 0, "zero1": 1, DISTRIBUTED: 1, "zero2": 2, "zero3": 3}
FRAMEWORKS: Mapping[str, Callable[[Strategy, Workload], str]] = {
    "megatron": _megatron,
    "torchtitan": _torchtitan,
    "deepspeed": _deepspeed,
    "nemo": _nemo,
}
"""Frameworks by name, and what writes a strategy for each."""
