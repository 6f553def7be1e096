"""Names that other tools have for the choices of a strategy, one group a choice. Each choice's declaration takes its group.

Sources, as of their releases in 2026: transformers, ``training_args.py``; DeepSpeed, docs/config-json; accelerate,
``commands/launch.py``; Megatron-LM, ``megatron/training/arguments.py``; torchtitan, ``config/job_config.py``; axolotl,
``utils/schemas``; LLaMA-Factory, ``hparams``; Lightning, ``Trainer``; NeMo, ``Megatron-Bridge`` recipes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from paceline.errors import UserError, shown, unknown
from paceline.strategy.choices.synonyms import (
    ACCELERATE,
    AXOLOTL,
    CORE,
    DEEPSPEED,
    HF,
    LIGHTNING,
    LLAMAFACTORY,
    MEGATRON,
    NEMO,
    PER_NODE,
    TORCHTITAN,
    TORCHTUNE,
    TRAINERS,
    TYPED,
    Synonym,
    flag,
    names_of,
)

Names = tuple[Synonym, ...]


def count(value: Any) -> int | None:
    """Return a positive whole number; None for 0 and less, which leave it to the tool. Raises UserError for others."""
    try:
        number = int(str(value))
    except ValueError:
        raise UserError(f"{shown(value)} is not a whole number", "give a number such as 8") from None
    return number if number > 0 else None


BATCH: Names = (
    *names_of("global_batch_size", (*CORE, TORCHTITAN), count),
    *names_of("train_batch_size", (DEEPSPEED,), count),
    *names_of("training.global_batch_size", (TORCHTITAN,), count),
    *names_of("gbs total_batch_size total_train_batch_size effective_batch_size", TYPED, count),
)
"""Samples of a step over all devices."""

_HALVES = {"bf16": "bf16", "fp16": "fp16", "no": "fp32", "fp8": "fp8"}
_FLOAT8 = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
_TYPES = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "float32": "fp32", "fp32": "fp32"}
_IN_FP32 = {"products_in_fp32": "tf32"}
"""Meaning of ``tf32``: the arithmetic of what stays in fp32."""
_SIXTEEN_BITS = {"sixteen_bits": True}
"""Meaning of ``bf16: auto``: 16 bits of the device's choice."""
_STORED_BF16 = {"precision": "bf16", "stored_weights": "bf16"}
_NEMO_PRECISIONS = {
    "bf16": "bf16",
    "bf16_mixed": "bf16",
    "bf16-mixed": "bf16",
    "fp16_mixed": "fp16",
    "16-mixed": "fp16",
    "16": "fp16",
    "32": "fp32",
    "bf16_with_fp8_delayed_scaling_mixed": "fp8",
    "bf16_with_fp8_mixed": "fp8",
    "bf16_with_fp8_current_scaling_mixed": "fp8-current",
    "bf16_with_fp8_subchannel_scaling_mixed": "fp8-block",
    "bf16_with_mxfp8_mixed": "mxfp8",
    "bf16_with_nvfp4_mixed": "nvfp4",
}


def _converted(value: Any) -> str | None:
    """Return the precision of torchtitan's converters of linear layers: ``float8`` has a scale for each tensor."""
    meant = {"float8": "fp8-current", "quantize.linear.float8": "fp8-current", "mx": "mxfp8", "quantize.linear.mx": "mxfp8"}
    names = [str(name).casefold() for name in (value if isinstance(value, list) else str(value).split(","))]
    return next((meant[name] for name in names if name in meant), None)


PRECISION: Names = (
    *names_of("tf32", TRAINERS, {**flag(_IN_FP32), "auto": None}),
    *names_of("bf16", (*TRAINERS, *CORE), {**flag("bf16"), "auto": _SIXTEEN_BITS, "full": "bf16"}),
    *names_of("fp16", (*TRAINERS, *CORE), {**flag("fp16"), "auto": _SIXTEEN_BITS, "full": "fp16"}),
    *names_of("bf16.enabled bfloat16.enabled", (DEEPSPEED,), flag("bf16")),
    *names_of("fp16.enabled", (DEEPSPEED,), flag("fp16")),
    *names_of("bfloat16 pure_bf16", (AXOLOTL, LLAMAFACTORY), flag(_STORED_BF16)),
    *names_of("mixed_precision", (ACCELERATE,), _HALVES),
    *names_of("fp8", (AXOLOTL,), flag("fp8-current")),
    *names_of("fp8_format", CORE, {"hybrid": "fp8", "e4m3": "fp8"}),
    *names_of(
        "fp8_recipe",
        CORE,
        {"delayed": "fp8", "tensorwise": "fp8-current", "blockwise": "fp8-block", "mxfp8": "mxfp8"},
    ),
    *names_of("fp4_format", CORE, {"e2m1": "nvfp4"}),
    *names_of("training.mixed_precision_param", (TORCHTITAN,), {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}),
    *names_of("model.converters", (TORCHTITAN,), _converted),
    *names_of("training.dtype", (TORCHTITAN,), {"float32": None, "bfloat16": _STORED_BF16}),
    *names_of("mixed_precision model.precision trainer.precision", (NEMO,), _NEMO_PRECISIONS),
    *names_of(
        "precision trainer.precision",
        (LIGHTNING,),
        {
            "bf16-mixed": "bf16",
            "16-mixed": "fp16",
            "32": "fp32",
            "32-true": "fp32",
            "16": "fp16",
            "bf16": "bf16",
            "bf16-true": _STORED_BF16,
            "transformer-engine": "fp8",
        },
    ),
    *names_of("amp mixed-precision autocast", TYPED, {**_HALVES, **_TYPES, "true": "bf16"}),
    *names_of("float8.recipe_name quantize.linear.float8.recipe_name", (TORCHTITAN,), dict.fromkeys(_FLOAT8, "fp8-current")),
    *names_of("dtype", (TORCHTUNE,), {"bf16": "bf16", "fp32": "fp32"}),
    *names_of("fp8_hybrid", TYPED, flag("fp8")),
    *names_of("dtype torch_dtype param_dtype compute_dtype", TYPED, _TYPES),
)
"""Precision of the arithmetic. ``questions`` takes the narrowest of several."""


def _optimizer(value: Any) -> Any:
    """Return the optimizer of a name that may also say how its kernels run."""
    name = str(value).strip().casefold().replace("-", "_")
    kernels = {"adamw_torch_fused": "fused", "adamw_apex_fused": "fused"}
    if name in kernels:
        return {"optimizer": "adamw", "update": kernels[name]}
    return {"distributed_fused_adam": "adam", "fused_adam": "adamw", "fusedadam": "adamw", "adamw_mp_rank": "adamw"}.get(
        name, name
    )


def _decoupled(value: Any) -> Any:
    """Return Megatron-Core's optimizer, whose Adam decays weights as AdamW does (``adam_w_mode`` of its kernels)."""
    meant = _optimizer(value)
    return {"adam": "adamw"}.get(meant, meant) if isinstance(meant, str) else meant


OPTIMIZER: Names = (
    *names_of("optim", (HF, LLAMAFACTORY), _optimizer),
    *names_of("optimizer", (AXOLOTL,), _optimizer),
    *names_of("optimizer", (MEGATRON,), _decoupled),
    *names_of("optimizer.type", (DEEPSPEED,), _optimizer),
    *names_of("optimizer.name", (TORCHTITAN,), _optimizer),
    *names_of("optimizer._component_", (TORCHTUNE,), lambda value: _optimizer(str(value).rpartition(".")[2])),
    *names_of("optimizer.optimizer optim.name", (NEMO,), _decoupled),
    *names_of("fused_adam fused_adamw", TYPED, flag({"optimizer": "adamw", "update": "fused"})),
    *names_of("adam8bit adam_8bit use_8bit_adam adamw8bit 8bit_optimizer", TYPED, flag("adamw_8bit")),
)
UPDATE: Names = (
    *names_of("optimizer.implementation", (TORCHTITAN,), {"fused": "fused", "foreach": "foreach", "for-loop": "looped"}),
    *names_of("optimizer.early_step_in_backward", (TORCHTITAN,), flag("in_backward")),
)
STORED_WEIGHTS: Names = ()
STATE_BITS: Names = (
    *names_of("exp_avg_dtype exp_avg_sq_dtype", CORE, {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8}),
    *names_of("optim_bits optimizer_bits", TYPED, {"8": 8, "16": 16, "32": 32}),
)
EMA: Names = (*names_of("use_ema", TYPED, flag(True)),)
LOSS: Names = (
    *names_of("use_liger_kernel enable_liger_kernel", (HF, LLAMAFACTORY), flag("chunked")),
    *names_of("liger_fused_linear_cross_entropy", (AXOLOTL,), flag("chunked")),
    *names_of("liger_cross_entropy", (AXOLOTL,), flag("in_place")),
    *names_of("cut_cross_entropy", (AXOLOTL,), flag("cut")),
    *names_of("cross_entropy_loss_fusion", CORE, flag("in_place")),
)
MEMORY_FORMAT: Names = (*names_of("channels_last", TYPED, flag("channels_last")),)
BUCKET: Names = (*names_of("ddp_bucket_cap_mb bucket_cap_mb", (HF, LIGHTNING), lambda value: f"{value}MiB"),)
TASK: Names = (
    *names_of("stage", (LLAMAFACTORY,), {"pt": "sft", "sft": "sft", "dpo": "dpo"}),
    *names_of("rl", (AXOLOTL,), {"dpo": "dpo", "grpo": "grpo"}),
)

TENSOR: Names = (
    *names_of("tensor_model_parallel_size", CORE, count),
    *names_of("parallelism.tensor_parallel_degree", (TORCHTITAN,), count),
    *names_of("tensor_parallel.autotp_size", (DEEPSPEED,), count),
    *names_of("parallelism_config_tp_size", (ACCELERATE,), count),
    *names_of("tensor_parallel_size", (AXOLOTL,), count),
    *names_of("model_parallel model_parallel_size mp mp_size", TYPED, count),
    *names_of("tp tp_size tensor_parallel tp_degree tensor_parallel_degree", TYPED, count),
)
PIPELINE: Names = (
    *names_of("pipeline_model_parallel_size", CORE, count),
    *names_of("parallelism.pipeline_parallel_degree", (TORCHTITAN,), count),
    *names_of("stages num_stages pipeline_stages", TYPED, count),
    *names_of("pp pp_size pipeline_parallel pipeline_parallel_size pp_degree pipeline_parallel_degree", TYPED, count),
)


def _swapped(value: Any) -> Any:
    """Return context parallelism that swaps heads for tokens (DeepSpeed Ulysses)."""
    size = count(value)
    return {"context": size, "context_exchange": "all_to_all"} if size and size > 1 else size


CONTEXT: Names = (
    *names_of("context_parallel_size", (*CORE, AXOLOTL), count),
    *names_of("parallelism.context_parallel_degree", (TORCHTITAN,), count),
    *names_of("parallelism_config_cp_size", (ACCELERATE,), count),
    *names_of("sequence_parallel_degree", (AXOLOTL,), count),
    *names_of("parallelism_config_sp_size", (ACCELERATE,), _swapped),
    *names_of("ring_attention ring_attn cp cp_size context_parallel context_parallel_degree", TYPED, count),
    *names_of("sp_size ulysses ulysses_sequence_parallel_size ulysses_size", TYPED, _swapped),
)
EXPERT: Names = (
    *names_of("expert_model_parallel_size", CORE, count),
    *names_of("parallelism.expert_parallel_degree", (TORCHTITAN,), count),
    *names_of("ep ep_size expert_parallel expert_parallel_size expert_parallel_degree", TYPED, count),
)
EXPERT_TENSOR: Names = (
    *names_of("expert_tensor_parallel_size", CORE, count),
    *names_of("parallelism.expert_tensor_parallel_degree", (TORCHTITAN,), count),
    *names_of("etp etp_size", TYPED, count),
)
EXPERT_EXCHANGE: Names = (
    *names_of("moe_token_dispatcher_type", CORE, {"alltoall": "all_to_all", "flex": "once_per_node"}),
    *names_of("moe_enable_deepep", CORE, flag("once_per_node")),
)
EXPERT_OVERLAP: Names = (*names_of("overlap_moe_expert_parallel_comm", CORE, flag(True, False)),)
SEQUENCE: Names = (
    *names_of("sequence_parallel", CORE, flag(True, False)),
    *names_of("parallelism.enable_sequence_parallel", (TORCHTITAN,), flag(True, False)),
    *names_of("sp sequence_parallelism", TYPED, flag(True, False)),
)
VIRTUAL_STAGES: Names = (
    *names_of("num_virtual_stages_per_pipeline_rank virtual_pipeline_model_parallel_size", CORE, count),
    *names_of("vpp vp_size", TYPED, count),
)
FIRST_STAGE: Names = (
    *names_of("decoder_first_pipeline_num_layers", (MEGATRON,), count),
    *names_of("num_layers_in_first_pipeline_stage", (NEMO,), count),
)
LAST_STAGE: Names = (
    *names_of("decoder_last_pipeline_num_layers", (MEGATRON,), count),
    *names_of("num_layers_in_last_pipeline_stage", (NEMO,), count),
)
SCHEDULE: Names = (
    *names_of(
        "parallelism.pipeline_parallel_schedule",
        (TORCHTITAN,),
        {"1f1b": None, "interleaved1f1b": None, "gpipe": "gpipe", "interleavedzerobubble": "zero_bubble"},
    ),
)
CONTEXT_EXCHANGE: Names = (*names_of("cp_comm_type", CORE, {"p2p": "ring", "a2a": "all_to_all"}),)

HSDP = MappingProxyType({"sharding": "zero3", "shard_devices": PER_NODE})
"""Shards among the devices of a node, copies between nodes (PyTorch, ``HYBRID_SHARD``)."""
_HSDP2 = MappingProxyType({"sharding": "zero2", "shard_devices": PER_NODE})
ZEROPP = MappingProxyType({"sharding": "zero3", "gather_bits": 8})
_OF_ZEROPP = "zero++ is zero3 with weights gathered in 8 bits; its copies in a node and its 4-bit gradients are not predicted"
_FSDP: dict[str, Any] = {
    "full_shard": "zero3",
    "shard_grad_op": "zero2",
    "no_shard": "ddp",
    "hybrid_shard": HSDP,
    "hybrid_shard_zero2": _HSDP2,
    "_hybrid_shard_zero2": _HSDP2,
    "hsdp": HSDP,
}
_NUMBERED = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
_BY_NUMBER = {str(number): _FSDP[name] for number, name in enumerate(_NUMBERED, 1)}
_STAGES = {"0": "ddp", "1": "zero1", "2": "zero2", "3": "zero3"}


def _fsdp(value: Any) -> Any:
    """Return the choices of ``TrainingArguments.fsdp``: words such as ``full_shard auto_wrap offload``, or True."""
    words = [str(word) for word in value] if isinstance(value, list) else str(value).replace(",", " ").split()
    stated: dict[str, Any] = {}
    for word in map(str.casefold, words):
        if word in ("true", "1"):
            stated["sharding"] = "zero3"
        elif word == "offload":
            stated["offload"] = "weights+optimizer"
        elif word in _FSDP:
            meant = _FSDP[word]
            stated |= meant if isinstance(meant, Mapping) else {"sharding": meant}
        elif word not in ("auto_wrap", "false"):
            raise unknown("word of fsdp", word, (*_FSDP, "offload", "auto_wrap"))
    return stated or None


def _lightning_strategy(value: Any) -> Any:
    """Return the sharding and the offload of Lightning's ``strategy``."""
    word = str(value).strip().casefold()
    stage = word.removeprefix("deepspeed_stage_")
    if stage != word and stage[:1] in _STAGES:
        return {"sharding": _STAGES[stage[:1]], **({"offload": "optimizer"} if "offload" in stage else {})}
    plain = {"ddp": "ddp", "fsdp": "zero3", "fsdp_cpu_offload": {"sharding": "zero3", "offload": "weights+optimizer"}}
    if word.startswith("ddp"):
        return "ddp"
    if word not in plain:
        raise unknown("strategy", word, (*plain, "deepspeed_stage_2", "deepspeed_stage_3"))
    return plain[word]


def _sharded_degree(value: Any) -> Any:
    """Return the sharding of a number of devices that share: all for -1, none for 1."""
    size = int(str(value))
    if size == 1:
        return "ddp"
    return "zero3" if size < 1 else {"sharding": "zero3", "shard_devices": size}


SHARDING: Names = (
    *names_of("distributed_type", (ACCELERATE,), {"fsdp": "zero3", "multi_gpu": "ddp", "no": "ddp", "deepspeed": None}),
    *names_of("zero_optimization.stage", (DEEPSPEED,), _STAGES),
    *names_of("zero_stage", (ACCELERATE,), _STAGES),
    *names_of("fsdp_sharding_strategy", (ACCELERATE, AXOLOTL), _FSDP | _BY_NUMBER),
    *names_of("fsdp_config.sharding_strategy", (HF, AXOLOTL), _FSDP),
    *names_of(
        "fsdp_reshard_after_forward fsdp_config.reshard_after_forward",
        (ACCELERATE, *TRAINERS),
        {**flag("zero3", "zero2"), **_FSDP},
    ),
    *names_of("fsdp", (HF, AXOLOTL), _fsdp, alone=True),
    *names_of("fsdp_reshard_after_forward", (TORCHTUNE,), flag("zero3", "zero2")),
    *names_of("use_distributed_optimizer", CORE, flag("distributed_optimizer")),
    *names_of("use_megatron_fsdp use_custom_fsdp use_torch_fsdp2", CORE, flag("zero3")),
    *names_of(
        "data_parallel_sharding_strategy",
        CORE,
        {"no_shard": "ddp", "optim": "zero1", "optim_grads": "zero2", "optim_grads_params": "zero3"},
    ),
    *names_of("parallelism.data_parallel_shard_degree", (TORCHTITAN,), _sharded_degree),
    *names_of(
        "parallelism.fsdp_reshard_after_forward",
        (TORCHTITAN,),
        {"always": "zero3", "never": "zero2", "default": None},
    ),
    *names_of("strategy trainer.strategy", (LIGHTNING,), _lightning_strategy),
    *names_of(
        "sharding sharding_strategy shard_strategy fsdp_sharding fsdp_strategy",
        TYPED,
        {**_FSDP, **_STAGES, "hybrid": HSDP, "zero++": ZEROPP, "zeropp": ZEROPP},
        remarks=dict.fromkeys(("zero++", "zeropp"), _OF_ZEROPP),
    ),
    *names_of("zero ds_stage deepspeed_stage zero_optimization zero_optimization_stage", TYPED, _STAGES),
    *names_of("zero1", TYPED, flag("zero1")),
    *names_of("zero2", TYPED, flag("zero2")),
    *names_of("zero3 fsdp2 full_shard fully_sharded", TYPED, flag("zero3")),
    *names_of("ddp", TYPED, flag("ddp")),
    *names_of("hsdp hybrid_shard", TYPED, flag(HSDP)),
    *names_of("zero++ zeropp", TYPED, flag(ZEROPP), remarks={"": _OF_ZEROPP}),
)
SHARD_DEVICES: Names = (
    *names_of("parallelism_config_dp_shard_size", (ACCELERATE,), count),
    *names_of("dp_shard_size", (AXOLOTL,), count),
    *names_of("zero_optimization.mics_shard_size", (DEEPSPEED,), count),
)
"""Devices that share one copy. Numbers of copies are statements (``questions/asked.py``)."""
OFFLOAD: Names = (
    *names_of("zero_optimization.offload_optimizer.device", (DEEPSPEED,), {"cpu": "optimizer", "none": None}, added=True),
    *names_of("zero_optimization.offload_param.device", (DEEPSPEED,), {"cpu": "weights+optimizer", "none": None}, added=True),
    *names_of("zero_optimization.cpu_offload", (DEEPSPEED,), flag("optimizer"), added=True),
    *names_of("activation_checkpointing.cpu_checkpointing", (DEEPSPEED,), flag("checkpoints"), added=True),
    *names_of("offload_optimizer_device", (ACCELERATE,), {"cpu": "optimizer", "none": None}, added=True),
    *names_of("offload_param_device", (ACCELERATE,), {"cpu": "weights+optimizer", "none": None}, added=True),
    *names_of(
        "fsdp_offload_params fsdp_config.offload_params", (ACCELERATE, HF, AXOLOTL), flag("weights+optimizer"), added=True
    ),
    *names_of("fsdp_cpu_offload", (TORCHTUNE,), flag("weights+optimizer"), added=True),
    *names_of("enable_activation_offloading", (TORCHTUNE,), flag("activations"), added=True),
    *names_of("training.enable_cpu_offload", (TORCHTITAN,), flag("weights+optimizer"), added=True),
    *names_of("optimizer_cpu_offload", CORE, flag("optimizer"), added=True),
    *names_of("cpu_offloading", CORE, flag("activations"), added=True),
    *names_of("activation_offloading", (AXOLOTL,), {**flag("activations"), "legacy": "checkpoints"}, added=True),
    *names_of("offload_optimizer offload_opt offload_adam optimizer_offload", TYPED, flag("optimizer"), added=True),
    *names_of("offload_param offload_params param_offload", TYPED, flag("weights+optimizer"), added=True),
    *names_of("offload_activations", TYPED, flag("activations"), added=True),
    *names_of("offload", TYPED, {"cpu": "cpu", "true": "cpu"}),
    *names_of("cpu_offload", TYPED, flag("cpu")),
)
"""``cpu`` is what the sharding lets: ``questions`` settles it."""
OFFLOAD_LAYERS: Names = (*names_of("cpu_offloading_num_layers", CORE, count),)
ACCUMULATION: Names = (
    *names_of("gradient_accumulation_steps", (HF, DEEPSPEED, ACCELERATE, AXOLOTL, LLAMAFACTORY, TORCHTUNE), count),
    *names_of("accumulate_grad_batches trainer.accumulate_grad_batches", (LIGHTNING,), count),
    *names_of("micro_steps update_freq ga gas grad_accum_steps accumulation accum accumulation_steps grad_acc", TYPED, count),
)
_OFFLOADED = MappingProxyType({"recompute": "full", "offload": "checkpoints"})


def _selective(value: Any) -> str:
    """Return selective recomputation of the parts in a list, or in a text of words."""
    parts = [str(part) for part in value] if isinstance(value, list) else str(value).strip("[]").replace(",", " ").split()
    return f"selective:{','.join(parts)}"


_WHOLE_OR_PARTS = {**flag("full", "none"), "full": "full", "selective": "selective"}
RECOMPUTE: Names = (
    *names_of(
        "gradient_checkpointing",
        TRAINERS,
        {**flag("full", "none"), "unsloth": _OFFLOADED, "offload": _OFFLOADED, "offload_disk": None},
    ),
    *names_of("enable_activation_checkpointing", (TORCHTUNE,), flag("full", "none")),
    *names_of("use_gradient_checkpointing", (HF,), {**flag("full", "none"), "unsloth": _OFFLOADED}),
    *names_of("disable_gradient_checkpointing", (LLAMAFACTORY,), flag("none", "full")),
    *names_of("fsdp_activation_checkpointing", (ACCELERATE, AXOLOTL), flag("full", "none")),
    *names_of("fsdp_config.activation_checkpointing", (HF, AXOLOTL), flag("full", "none")),
    *names_of("recompute_granularity", CORE, {"full": "full", "selective": "selective", "null": "none", "none": "none"}),
    *names_of("recompute_activations", (MEGATRON,), flag("selective")),
    *names_of("selective_recompute selective_checkpointing selective_ac", TYPED, flag("selective")),
    *names_of("full_recompute recomputation remat activation_recompute", TYPED, _WHOLE_OR_PARTS),
    *names_of("recompute_modules", CORE, _selective),
    *names_of("activations_checkpoint_granularity", (NEMO,), {"full": "full", "selective": "selective", "null": "none"}),
    *names_of("activation_checkpoint.mode", (TORCHTITAN,), {"none": "none", "full": "full", "selective": "selective:op"}),
    *names_of(
        "activation_checkpointing grad_checkpointing activation_checkpoint ac checkpointing checkpoint_activations grad_ckpt",
        TYPED,
        _WHOLE_OR_PARTS,
    ),
)
GATHER_BITS: Names = (
    *names_of("zero_optimization.zero_quantized_weights", (DEEPSPEED,), flag(8)),
    *names_of("fp8_param_gather", CORE, flag(8)),
)
GRADIENT_BITS: Names = (
    *names_of("grad_reduce_in_bf16", CORE, flag(16)),
    *names_of("training.mixed_precision_reduce", (TORCHTITAN,), {"float32": 32, "bfloat16": 16}),
)
COMPRESSION: Names = (*names_of("ddp_comm_hook", (ACCELERATE,), {"no": None, "bf16": "bf16", "power_sgd": "powersgd"}),)
