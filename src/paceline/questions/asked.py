"""Statements of a question besides the choices of a strategy: network, machines, batch of a device, amount, software.

Each ``Statement`` declares its options and its names in other tools, as a ``StrategyChoice`` does. ``STATED`` has both by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from paceline.strategy.choices.choice import StrategyChoice
from paceline.strategy.choices.choice_values import Flag
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
    TORCHTITAN,
    TORCHTUNE,
    TRAINERS,
    TYPED,
    Synonym,
    flag,
    folded,
    names_of,
)
from paceline.strategy.choices.tool_names import count
from paceline.strategy.strategy import CHOICES


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Statement of a question that is no choice of a strategy.

    Attributes:
        name: name of its facts.
        title: the statement in words.
        options: options that take it, of which a command has one at most; empty: ``joined_facts`` turns it into others.
        synonyms: names in other tools.
        is_flag: True if its option takes no value.
    """

    name: str
    title: str
    options: tuple[str, ...] = ()
    synonyms: tuple[Synonym, ...] = ()
    is_flag: bool = False


_EACH = "counts samples of one device in one micro step; --global-batch counts those of all devices"
_KERNELS = {
    **dict.fromkeys(("flash_attention_2", "flash", "flash2", "flash_attn", "flash_attention", "fa2"), "fa2"),
    **dict.fromkeys(("flash_attention_3", "flash3", "fa3", "kernels-community/flash-attn3"), "fa3"),
    **dict.fromkeys(("fused", "cudnn"), "cudnn"),
    **dict.fromkeys(("eager", "unfused", "local", "disabled"), "eager"),
    "sdpa": "sdpa",
    "2": "fa2",
    "3": "fa3",
}
_STAGES = {
    word: {"framework": "deepspeed", "sharding": f"zero{stage}"}
    for stage in (1, 2, 3)
    for word in (f"zero{stage}", f"z{stage}", f"stage{stage}", f"zero_{stage}", f"zero-{stage}", str(stage))
}
"""Stages of ZeRO as values of ``--deepspeed``."""
_LORA_TARGETS = "lora_targets"


def _words(value: object) -> str:
    """Return the layers of a list, or of a text with commas or spaces, joined by ``+``."""
    names = [str(name) for name in value] if isinstance(value, list) else str(value).replace(",", " ").split()
    return "+".join({"all": "all-linear"}.get(name, name) for name in names)


def _devices(value: object) -> object:
    """Return a number of devices as such, any other text as the device."""
    text = str(value).strip()
    return {"world_size": int(text)} if text.isdecimal() else text


_EVERY = (
    Statement(
        name="workload",
        title="the network",
        synonyms=(
            *names_of("model_name_or_path", (HF, LLAMAFACTORY)),
            *names_of("base_model", (AXOLOTL,)),
            *names_of("model model_name model_id", TYPED),
        ),
    ),
    Statement(
        name="seq_len",
        title="tokens of a sequence",
        options=("seq-len",),
        synonyms=(
            *names_of("max_seq_length max_length model_max_length", (HF,), count),
            *names_of("cutoff_len", (LLAMAFACTORY,), count),
            *names_of("sequence_len", (AXOLOTL,), count),
            *names_of("seq_length", CORE, count),
            *names_of("training.seq_len", (TORCHTITAN,), count),
            *names_of("tokenizer.max_seq_len", (TORCHTUNE,), count),
            *names_of("seq max_seq ctx sequence_length block_size max_seq_len context_length seqlen ctx_len", TYPED),
        ),
    ),
    Statement(
        name="micro_batch_size",
        title="samples of a device in a micro step",
        options=("micro-batch-size",),
        synonyms=(
            *names_of("per_device_train_batch_size", (HF, LLAMAFACTORY), count),
            *names_of("train_micro_batch_size_per_gpu", (DEEPSPEED, ACCELERATE), count),
            *names_of("micro_batch_size", (*CORE, AXOLOTL), count),
            *names_of("training.local_batch_size training.batch_size", (TORCHTITAN,), count),
            *names_of("data.batch_size data.init_args.batch_size", (LIGHTNING,), count),
            *names_of("batch_size", (TORCHTUNE,), count),
            *names_of(
                "mb samples_per_gpu mbs per_gpu_train_batch_size per_device_batch_size batch_size_per_gpu device_batch_size",
                TYPED,
                count,
            ),
            *names_of("bs batch_size batch", TYPED, count, remarks={"": _EACH}),
        ),
    ),
    Statement(
        name="pipeline_micro_batch",
        title="samples of a micro batch of the pipeline",
        synonyms=tuple(names_of("parallelism.pipeline_parallel_microbatch_size", (TORCHTITAN,), count)),
    ),
    Statement(
        name="steps",
        title="steps of the training",
        synonyms=(
            *names_of("max_steps", (*TRAINERS, LIGHTNING, NEMO), count),
            *names_of("train_iters", CORE, count),
            *names_of("training.steps", (TORCHTITAN,), count),
            *names_of("steps num_steps max_iters num_training_steps train_steps", TYPED, count),
        ),
    ),
    Statement(
        name="samples",
        title="samples of the training",
        options=("samples",),
        synonyms=tuple(names_of("train_samples", (MEGATRON,), count)),
    ),
    Statement(
        name="epochs",
        title="epochs of the training",
        options=("epochs",),
        synonyms=(
            *names_of("num_train_epochs", (HF, LLAMAFACTORY)),
            *names_of("num_epochs", (AXOLOTL,)),
            *names_of("max_epochs", (LIGHTNING,)),
        ),
    ),
    Statement(name="tokens", title="tokens of the training", options=("tokens",)),
    Statement(
        name="cluster",
        title="the machines",
        options=("cluster", "on"),
        synonyms=tuple(names_of("hardware machines machine", TYPED)),
    ),
    Statement(
        name="network",
        title="network between nodes",
        options=("network",),
        synonyms=tuple(names_of("interconnect inter_node_network internode", TYPED)),
    ),
    Statement(
        name="device",
        title="the device",
        options=("device",),
        synonyms=tuple(names_of("gpu gpu_type gpu_name accelerator_type device_type", TYPED, _devices)),
    ),
    Statement(
        name="nodes",
        title="nodes",
        options=("nodes",),
        synonyms=(
            *names_of("num_machines", (ACCELERATE,), count),
            *names_of("num_nodes", (LIGHTNING, NEMO), count),
            *names_of("nnodes num_nodes", TYPED, count),
        ),
    ),
    Statement(
        name="devices_per_node",
        title="devices of a node",
        options=("devices-per-node",),
        synonyms=(
            *names_of("trainer.devices", (LIGHTNING, NEMO), count),
            *names_of("nproc_per_node gpus_per_node num_gpus_per_node ngpus_per_node", TYPED, count),
        ),
    ),
    Statement(
        name="world_size",
        title="devices of all nodes",
        synonyms=(
            *names_of("num_processes", (ACCELERATE,), count),
            *names_of("world_size num_gpus ngpus gpus device_count num_devices", TYPED, count),
        ),
    ),
    Statement(
        name="copies",
        title="groups of devices that hold one copy each",
        synonyms=(
            *names_of("parallelism.data_parallel_replicate_degree", (TORCHTITAN,), count),
            *names_of("parallelism_config_dp_replicate_size", (ACCELERATE,), count),
            *names_of("dp_replicate_size", (AXOLOTL,), count),
            *names_of("num_distributed_optimizer_instances", CORE, count),
        ),
    ),
    Statement(
        name="attention",
        title="kernel of attention",
        options=("attention",),
        synonyms=(
            *names_of("attn_implementation", (HF, AXOLOTL), _KERNELS),
            *names_of("flash_attn", (LLAMAFACTORY,), _KERNELS),
            *names_of("flash_attention", (AXOLOTL,), flag("fa2")),
            *names_of("sdp_attention", (AXOLOTL,), flag("sdpa")),
            *names_of("eager_attention", (AXOLOTL,), flag("eager")),
            *names_of("use_flash_attn", CORE, flag("fa2")),
            *names_of("attention_backend", CORE, _KERNELS),
            *names_of("attention attention_type attn attn_impl attn_backend", TYPED, _KERNELS),
            *names_of("flash_attn flash_attention flash use_flash_attention", TYPED, {**flag("fa2"), **_KERNELS}),
            *names_of("flash2 flash_attention_2 flash_attn_2 use_flash_attention_2 fa2", TYPED, flag("fa2")),
            *names_of("flash_attention_3 flash_attn_3 fa3", TYPED, flag("fa3")),
            *names_of("sdpa use_sdpa", TYPED, flag("sdpa")),
        ),
    ),
    Statement(
        name="compile",
        title="compilation",
        options=("compile",),
        is_flag=True,
        synonyms=(
            *names_of("torch_compile", TRAINERS, {**flag(True, False), "auto": None}),
            *names_of("compile.enable training.compile", (TORCHTITAN,), flag(True, False)),
            *names_of("compile", (TORCHTUNE,), flag(True, False)),
            *names_of("dynamo_backend", (ACCELERATE,), {"inductor": True, "no": None}),
            *names_of("compile use_compile", TYPED, flag(True, False)),
        ),
    ),
    Statement(
        name="framework",
        title="software that trains",
        options=("framework",),
        synonyms=(
            *names_of("deepspeed use_deepspeed", TYPED, {**flag("deepspeed"), **_STAGES}),
            *names_of("megatron use_megatron", TYPED, flag("megatron")),
        ),
    ),
    Statement(name="lora", title="adapters", options=("lora",), synonyms=tuple(names_of("lora", TYPED, {"true": "lora"}))),
    Statement(
        name="adapter",
        title="kind of adapters",
        synonyms=(
            *names_of("adapter", (AXOLOTL,), {"lora": "lora", "qlora": "qlora"}),
            *names_of("finetuning_type", (LLAMAFACTORY,), {"lora": "lora", "full": None}),
            *names_of("use_peft use_lora", (HF,), flag("lora")),
            *names_of("qlora", TYPED, {"true": "qlora"}),
            *names_of("peft peft_type peft_method", TYPED, {"lora": "lora", "qlora": "qlora", "dora": "dora"}),
            *names_of("dora", TYPED, {"true": "dora"}),
        ),
    ),
    Statement(
        name="lora_rank",
        title="rank of adapters",
        synonyms=(
            *names_of("lora_r", (HF, AXOLOTL), count),
            *names_of("lora_rank", (LLAMAFACTORY,), count),
            *names_of("lora_dim", TYPED, count),
        ),
    ),
    Statement(name="lora_alpha", title="alpha of adapters", synonyms=tuple(names_of("lora_alpha", TRAINERS))),
    Statement(name="lora_dropout", title="dropout of adapters", synonyms=tuple(names_of("lora_dropout", TRAINERS))),
    Statement(
        name=_LORA_TARGETS,
        title="layers with adapters",
        synonyms=(
            *names_of("lora_target_modules", (HF, AXOLOTL), _words),
            *names_of("lora_target", (LLAMAFACTORY,), _words),
            *names_of("lora_target_linear", (AXOLOTL,), flag("all-linear")),
        ),
    ),
    Statement(
        name="lora_bits",
        title="bits of frozen weights",
        synonyms=(
            *names_of("load_in_4bit", TRAINERS, flag(4)),
            *names_of("load_in_8bit", TRAINERS, flag(8)),
            *names_of("quantization_bit", (LLAMAFACTORY,), count),
        ),
    ),
    Statement(
        name="lora_dora",
        title="magnitudes of adapters",
        synonyms=(*names_of("use_dora", (HF, LLAMAFACTORY), flag(True)), *names_of("peft_use_dora", (AXOLOTL,), flag(True))),
    ),
    Statement(
        name="lora_save",
        title="layers that are trained whole",
        synonyms=(
            *names_of("lora_modules_to_save", (HF, AXOLOTL), _words),
            *names_of("additional_target", (LLAMAFACTORY,), _words),
        ),
    ),
    Statement(
        name="packing",
        title="several samples in a sequence",
        synonyms=(
            *names_of("dataset.packed", (TORCHTUNE,), flag(True, False)),
            *names_of("packing", (HF, LLAMAFACTORY), flag(True, False)),
            *names_of("sample_packing", (AXOLOTL,), flag(True, False)),
        ),
    ),
    Statement(name="products_in_fp32", title="arithmetic of what stays in fp32"),
    Statement(name="sixteen_bits", title="arithmetic in 16 bits of the device's choice"),
    Statement(name="num_layers", title="layers", synonyms=tuple(names_of("num_layers", CORE, count))),
    Statement(
        name="layers_per_virtual_stage",
        title="layers of a virtual stage",
        synonyms=tuple(names_of("num_layers_per_virtual_pipeline_stage", CORE, count)),
    ),
    Statement(
        name="recompute_method",
        title="method of recomputation",
        synonyms=tuple(names_of("recompute_method", CORE, {"uniform": "uniform", "block": "block"})),
    ),
    Statement(
        name="recomputed_layers",
        title="layers that are recomputed",
        synonyms=tuple(names_of("recompute_num_layers", CORE, count)),
    ),
)
QUESTIONS: Mapping[str, Statement] = {question.name: question for question in _EVERY}
"""Statements that are no choices, by name."""
STATED: Mapping[str, Statement | StrategyChoice] = {**CHOICES, **QUESTIONS}
"""Everything that a question states, by name."""
Entry = tuple[str, int, Synonym]
"""Name of a statement, the rank of a synonym among the statement's, and the synonym."""


def options_of(name: str) -> tuple[str, ...]:
    """Return the options of a statement, without dashes."""
    item = STATED[name]
    if isinstance(item, Statement):
        return item.options
    return (item.option, *item.other_options) if item.option else ()


def is_flag(name: str) -> bool:
    """Return whether the option of a statement takes no value."""
    item = STATED[name]
    return item.is_flag if isinstance(item, Statement) else isinstance(item.values, Flag)


@cache
def names_in(tool: str) -> Mapping[str, Entry]:
    """Return the statements of a tool by their folded names there."""
    return {folded(each.name): (name, rank, each) for name, rank, each in _every() if tool in each.tools}


@cache
def typed_names() -> Mapping[str, Entry]:
    """Return the statements by every folded name that a command line may have, those that only people type first."""
    found: dict[str, Entry] = {}
    for entry in sorted(_every(), key=lambda entry: bool(entry[2].tools)):
        found.setdefault(folded(entry[2].name), entry)
    return found


def looked_up(tool: str, path: Sequence[str]) -> Entry | None:
    """Return the statement of a tool's key, by the longest ending of its path that is known; None without one."""
    names = names_in(tool)
    endings = (folded(".".join(path[start:])) for start in range(len(path)))
    return next((names[ending] for ending in endings if ending in names), None)


def _every() -> Iterator[Entry]:
    for name, item in STATED.items():
        for rank, each in enumerate(item.synonyms):
            yield name, rank, each
