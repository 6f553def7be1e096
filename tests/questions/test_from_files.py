"""Files of other tools as questions: kinds told by their content, what each states, and how files join."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.questions.facts import combined
from paceline.questions.from_files import divided_path, read_files
from paceline.questions.joined import joined_facts
from paceline.workload import Workload

DEEPSPEED = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "none"},
        "reduce_bucket_size": "auto",
        "zero_hpz_partition_size": 8,
    },
    "gradient_clipping": 1.0,
}
ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_offload_params: true
  fsdp_reshard_after_forward: FULL_SHARD
  fsdp_version: 1
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""
TITAN = """
[model]
name = "llama3"
flavor = "70B"
converters = ["float8"]
[training]
local_batch_size = 2
seq_len = 4096
steps = 100
[parallelism]
data_parallel_replicate_degree = 2
tensor_parallel_degree = 4
[activation_checkpoint]
mode = "full"
[metrics]
log_freq = 10
"""
TITAN_PYTHON = """
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer
BATCH = 2 * 4
def config():
    return Trainer.Config(
        model_spec=model_registry("8B"),
        optimizer=OptimizersContainer.Config(
            param_groups=[ParamGroupConfig(optimizer_name="AdamW")], implementation="foreach"),
        training=TrainingConfig(local_batch_size=BATCH, seq_len=8192, steps=1000),
        parallelism=ParallelismConfig(tensor_parallel_degree=2, data_parallel_shard_degree=-1),
        activation_checkpoint=SelectiveAC.Config(),
        compile=CompileConfig(enable=True),
    )
"""
AXOLOTL = """
base_model: NousResearch/Llama-2-7b-hf
load_in_4bit: true
adapter: qlora
lora_r: 16
lora_alpha: 32
lora_target_modules: [q_proj, v_proj]
sequence_len: 2048
sample_packing: false
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 1
optimizer: paged_adamw_8bit
gradient_checkpointing: true
flash_attention: true
datasets:
  - path: some/data
    type: alpaca
"""
FACTORY = """
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
template: qwen
cutoff_len: 1024
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
flash_attn: fa2
"""
MEGATRON = r"""#!/bin/bash
#SBATCH --nodes=2 --gres=gpu:8
GPUS=8
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096   # the network
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --ffn-hidden-size 14336 --swiglu
)
torchrun --nproc_per_node $GPUS --nnodes $SLURM_NNODES --master_addr $(hostname) pretrain_gpt.py \
    "${MODEL_ARGS[@]}" --seq-length ${SEQ:-8192} --micro-batch-size 1 --global-batch-size 128 \
    --tensor-model-parallel-size 4 --sequence-parallel --pipeline-model-parallel-size 2 \
    --num-layers-per-virtual-pipeline-stage 4 --use-distributed-optimizer \
    --bf16 --fp8-format hybrid --train-iters 500 --moe-expert-capacity-factor 1.5 \
    --recompute-granularity full --recompute-method block --recompute-num-layers 2 --lr 1e-4
"""
PRINTED = """TrainingArguments(
_n_gpu=1,
bf16=True,
gradient_accumulation_steps=2,
lr_scheduler_type=SchedulerType.LINEAR,
optim=OptimizerNames.ADAMW_TORCH_FUSED,
output_dir=/tmp/out,
per_device_train_batch_size=16,
fsdp=[],
)
"""
SCRIPT = """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-v0.1", attn_implementation="sdpa")
peft = LoraConfig(r=8, target_modules=["q_proj"], lora_dropout=0.05)
args = SFTConfig(output_dir="x", per_device_train_batch_size=2, gradient_checkpointing=True, max_length=1024, bf16=True)
"""
NEMO = """
trainer: {devices: 8, num_nodes: 4, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 64
  tensor_model_parallel_size: 2
  sequence_parallel: true
  seq_length: 4096
exp_manager: {name: x}
"""
LIGHTNING = """
trainer: {accelerator: gpu, devices: 4, num_nodes: 2, strategy: fsdp, precision: bf16-mixed, accumulate_grad_batches: 2}
data: {batch_size: 8}
"""
EXPECTED = {
    "ds.json": (
        json.dumps(DEEPSPEED),
        {"micro_batch_size": 4, "sharding": "zero3", "offload": "optimizer", "framework": "deepspeed"},
    ),
    "acc": (
        ACCELERATE,
        {
            "sharding": "zero3",
            "offload": "weights+optimizer",
            "recompute": "full",
            "precision": "bf16",
            "nodes": 2,
            "devices_per_node": 8,
        },
    ),
    "titan": (
        TITAN,
        {
            "workload": "llama-3-70b",
            "micro_batch_size": 2,
            "seq_len": 4096,
            "tensor": 4,
            "precision": "fp8-current",
            "recompute": "full",
            "sharding": "zero3",
        },
    ),
    "titan.py": (
        TITAN_PYTHON,
        {
            "workload": "llama-3-8b",
            "micro_batch_size": 8,
            "seq_len": 8192,
            "tensor": 2,
            "optimizer": "adamw",
            "update": "foreach",
            "recompute": "selective:op",
            "compile": True,
        },
    ),
    "axolotl": (
        AXOLOTL,
        {
            "workload": "NousResearch/Llama-2-7b-hf",
            "lora": "qlora,r=16,targets=q_proj+v_proj,bits=4,alpha=32",
            "seq_len": 2048,
            "micro_batch_size": 2,
            "grad_accum_steps": 4,
            "optimizer": "paged_adamw_8bit",
            "recompute": "full",
            "attention": "fa2",
            "epochs": 1,
        },
    ),
    "factory": (
        FACTORY,
        {
            "workload": "Qwen/Qwen2.5-7B-Instruct",
            "lora": "lora,r=8,targets=all-linear",
            "seq_len": 1024,
            "micro_batch_size": 1,
            "grad_accum_steps": 8,
            "precision": "bf16",
            "recompute": "full",
            "task": "sft",
            "framework": "llama-factory",
        },
    ),
    "train.sh": (
        MEGATRON,
        {
            "workload": "llama-3-8b",
            "nodes": 2,
            "devices_per_node": 8,
            "seq_len": 8192,
            "micro_batch_size": 1,
            "global_batch_size": 128,
            "tensor": 4,
            "pipeline": 2,
            "virtual_stages": 4,
            "sequence": True,
            "sharding": "distributed_optimizer",
            "precision": "fp8",
            "recompute": "full",
            "recompute_layers": 2,
            "samples": 64000,
            "framework": "megatron",
        },
    ),
    "args.txt": (
        PRINTED,
        {"micro_batch_size": 16, "grad_accum_steps": 2, "precision": "bf16", "optimizer": "adamw", "update": "fused"},
    ),
    "script.py": (
        SCRIPT,
        {
            "workload": "mistralai/Mistral-7B-v0.1",
            "attention": "sdpa",
            "lora": "lora,r=8,targets=q_proj,dropout=0.05",
            "micro_batch_size": 2,
            "seq_len": 1024,
            "recompute": "full",
            "framework": "trl",
        },
    ),
    "nano.py": (
        "out_dir = 'x'\nbatch_size = 12\nblock_size = 1024\ngradient_accumulation_steps = 5 * 8\n",
        {"micro_batch_size": 12, "seq_len": 1024, "grad_accum_steps": 40},
    ),
    "nemo": (
        NEMO,
        {
            "nodes": 4,
            "devices_per_node": 8,
            "precision": "bf16",
            "micro_batch_size": 1,
            "global_batch_size": 64,
            "tensor": 2,
            "sequence": True,
            "seq_len": 4096,
        },
    ),
    "lightning": (
        LIGHTNING,
        {
            "nodes": 2,
            "devices_per_node": 4,
            "sharding": "zero3",
            "precision": "bf16",
            "grad_accum_steps": 2,
            "micro_batch_size": 8,
        },
    ),
    "line": (
        "accelerate launch --num_processes 8 --mixed_precision=fp16 t.py --model_name_or_path gpt2 --batch-size 4 --lr 1e-4",
        {"devices_per_node": 8, "precision": "fp16", "workload": "gpt2", "micro_batch_size": 4},
    ),
    "ds.sh": (
        "deepspeed --num_gpus=4 train.py --per_device_train_batch_size 2 --zero-stage 2",
        {"devices_per_node": 4, "micro_batch_size": 2, "sharding": "zero2", "framework": "deepspeed"},
    ),
    "commented.sh": (
        "#SBATCH --nodes=2   # nodes\n#SBATCH --gres=gpu:a100:4  # each\nB=${1:-3}\nif [ $B = 3 ]; then\n  Z=2\nfi\n"
        'CMD="deepspeed t.py --deepspeed --zero_stage $Z --per_device_train_batch_size $B --lora_dim 16"\neval $CMD\n',
        {"nodes": 2, "devices_per_node": 4, "micro_batch_size": 3, "sharding": "zero2", "lora": "lora,r=16"},
    ),
    "factory_default": (
        FACTORY.replace("lora_rank: 8", "quantization_bit: 4"),
        {"lora": "lora,r=8,targets=all-linear,bits=4"},
    ),
    "factory_whole": (
        FACTORY.replace("finetuning_type: lora", "finetuning_type: full").replace("lora_rank: 8", ""),
        {"lora": None},
    ),
    "torchtune": (
        "model:\n  _component_: torchtune.models.llama3.llama3_8b\ntokenizer: {max_seq_len: 2048}\nbatch_size: 2\n"
        "optimizer: {_component_: torch.optim.AdamW, fused: true}\nenable_activation_checkpointing: true\ndtype: bf16\n",
        {"micro_batch_size": 2, "seq_len": 2048, "recompute": "full", "optimizer": "adamw", "precision": "bf16"},
    ),
    "model.json": ('{"model_type": "llama", "hidden_size": 64}', {}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_a_file_states(name: str, tmp_path: Path) -> None:
    text, expected = EXPECTED[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    reading = read_files([str(tmp_path / name)])
    found = {fact.name: fact.value for fact in joined_facts(combined(reading.facts)[0])[0].values()}
    assert {key: found.get(key) for key in expected} == expected
    assert name != "model.json" or found == {"workload": str(tmp_path / name)}


@pytest.mark.parametrize(
    ("arguments", "parameters"),
    [
        ("--num-layers 4 --hidden-size 256 --num-attention-heads 4 --vocab-size 1000 --seq-length 128", 3.45e6),
        ("--num-layers 4 --hidden-size 256 --num-attention-heads 4 --swiglu --ffn-hidden-size 512 --vocab-size 1000", 2.88e6),
        (
            "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --swiglu --num-experts 4 --moe-router-topk 2 "
            "--moe-ffn-hidden-size 512 --vocab-size 1000 --untie-embeddings-and-output-weights",
            4.19e6,
        ),
    ],
)
def test_a_network_of_megatron_that_is_not_published(arguments: str, parameters: float, tmp_path: Path) -> None:
    (tmp_path / "args").write_text(arguments + " --micro-batch-size 1")
    stated = {fact.name: fact.value for fact in read_files([str(tmp_path / "args")]).facts}
    assert Workload.named(stated["workload"], 128).num_parameters == pytest.approx(parameters, rel=0.02)


def test_what_is_not_understood_is_listed_and_the_rest_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED))
    (tmp_path / "train.sh").write_text(MEGATRON)
    reading = read_files([str(tmp_path / "ds.json"), str(tmp_path / "train.sh")])
    assert reading.unknown == [
        "ds.json: zero_optimization.zero_hpz_partition_size = 8",
        "train.sh: --moe-expert-capacity-factor",
    ]
    assert any("gradient_clipping" in each for each in reading.ignored) and any("--lr" in each for each in reading.ignored)


def test_files_that_a_file_names(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "torchrun --nproc_per_node 8 t.py --deepspeed conf/ds.json --per_device_train_batch_size 1"
    )
    missing = read_files([str(tmp_path / "run.sh")])
    assert missing.notes == ["conf/ds.json, which run.sh names, is not there: add it to --from."]
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    found = read_files([str(tmp_path / "run.sh")])
    assert found.notes == ["ds.json, which run.sh names, is read too."]
    assert read_files([str(tmp_path / "run.sh"), str(tmp_path / "ds.json")]).notes == []
    (tmp_path / "named.sh").write_text("deepspeed t.py --deepspeed ds_z3_bf16.json --per_device_train_batch_size 1")
    guessed = read_files([str(tmp_path / "named.sh")])
    assert "ZeRO stage 3 is taken from its name" in guessed.notes[0]
    broken = "cat <<EOF > ds.json\n{no\nEOF\ndeepspeed t.py --deepspeed_config ds.json --bs 1\n"
    (tmp_path / "broken.sh").write_text(broken)
    assert read_files([str(tmp_path / "broken.sh")]).unknown == ["broken.sh: the text of ds.json"]
    within = 'cat <<EOF > ds.json\n{"zero_optimization": {"stage": $Z}}\nEOF\ndeepspeed t.py --deepspeed_config ds.json\n'
    (tmp_path / "within.sh").write_text("Z=1\n" + within)
    stated = {fact.name: fact.value for fact in read_files([str(tmp_path / "within.sh")]).facts}
    assert stated["sharding"] == "zero1"


def test_files_that_contradict(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 4}')
    (tmp_path / "run.sh").write_text("torchrun t.py --per_device_train_batch_size 1 --gradient_accumulation_steps 8")
    reading = read_files([str(tmp_path / "ds.json"), str(tmp_path / "run.sh")])
    with pytest.raises(UserError, match=r"ds\.json: .* = 4 and run\.sh: --gradient_accumulation_steps 8 contradict"):
        combined(reading.facts)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(8)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 training_args.bin", "pickle, which may run code"),
        (b"\xff\xfe\x00\x01 no text", "is no text"),
        (b"x" * (1 << 20) + b"y", "bytes; a file of settings"),
        (b"base_model: x\nsequence_len: [1, 2\nadapter: lora\n", "line [0-9]+ is no YAML"),
        (b"base_model: !!python/object/apply:os.system ['touch x']\nadapter: lora\n", "would make an object"),
        (b"zero_optimization: &z\n  stage: *z\n", "no YAML|levels|settings"),
        (BOMB.encode(), "more than 5,000 settings"),
        (b'{"log_history": [], "global_step": 1}', "the log of a run; paceline records import"),
        (b'{"colour": "red"}', "no settings that are known"),
        (b"iter 340: loss 5.4983, time 33785.52ms\niter 350: loss 5.4702, time 33798.82ms\n", "looks like the log of a run"),
        (b"just some words of a letter\nto somebody else\n", "starts no training"),
        (b"import os\n\ndef main():\n    pass\n", "no settings of a training"),
    ],
)
def test_what_is_no_file_of_settings_is_an_error(text: bytes, message: str, tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_bytes(text)
    with pytest.raises(UserError, match=message):
        read_files([str(place)])


def test_paths() -> None:
    assert divided_path("a/config.py:llama") == ("a/config.py", "llama") and divided_path("a/ds.json") == ("a/ds.json", "")
    with pytest.raises(UserError, match="cannot read"):
        read_files(["no/such/file.json"])
    with pytest.raises(UserError, match="is a folder"):
        read_files([str(Path(__file__).parent)])


def test_one_of_several_configurations(tmp_path: Path) -> None:
    place = tmp_path / "configs.py"
    place.write_text(TITAN_PYTHON + TITAN_PYTHON.replace("def config", "def other").replace('"8B"', '"70B"'))
    with pytest.raises(UserError, match=r"configurations config, other; name one: --from configs\.py:config"):
        read_files([str(place)])
    facts = {fact.name: fact.value for fact in read_files([f"{place}:other"]).facts}
    assert facts["workload"] == "llama-3-70b"


def test_a_starter_in_a_comment_makes_no_script(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text(
        "# accelerate has no option for it. A plan without --emit tries both.\ndistributed_type: FSDP\nmixed_precision: bf16\n"
        "num_machines: 1\nnum_processes: 8\n"
    )
    found = {fact.name: fact.value for fact in read_files([str(tmp_path / "acc.yaml")]).facts}
    assert (found["precision"], found["world_size"]) == ("bf16", 8)
