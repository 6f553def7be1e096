"""Options of other frameworks: read back they are the strategy, and what a framework lacks is refused."""

from __future__ import annotations

import argparse
import ast
import json
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts import facts
from paceline import Cluster, Strategy, Workload
from paceline.errors import UserError
from paceline.planning import Goal, Space, plan
from paceline.planning.emit import targets
from paceline.planning.emit.targets import searched
from paceline.planning.emit.torchtitan import CONVERTERS
from paceline.strategy.choices.values import plain

LLAMA = Workload.named("llama-2-7b")  # 32 blocks
FRAMEWORKS = ("megatron", "torchtitan", "deepspeed", "nemo")


def emit(target: str, chosen: Strategy, workload: Workload) -> str:
    """On nodes of eight."""
    cluster = Cluster.named(f"{chosen.world_size // 8}x8 H100", network="8x InfiniBand NDR")
    return targets.emit(target, chosen, workload, cluster)


def strategy(**choices: Any) -> Strategy:
    usual = {"world_size": 64, "global_batch_size": 512, "precision": "bf16", "optimizer": "adamw"}
    return Strategy.of(**{**usual, **choices})


meshes = st.fixed_dictionaries(
    {
        "tensor": st.sampled_from([1, 2, 8]),
        "context": st.sampled_from([1, 2]),
        "pipeline": st.sampled_from([1, 2, 4]),
        "grad_accum_steps": st.sampled_from([4, 8]),
        "sharding": st.sampled_from(["ddp", "zero1", "zero2", "zero3"]),
        "recompute": st.sampled_from(["none", "full", "selective", "selective:mlp,layernorm", "selective:op"]),
        "sequence": st.booleans(),
        "precision": st.sampled_from(["bf16", "fp8", "fp8-current", "fp8-block", "mxfp8", "fp32"]),
        "virtual_stages": st.sampled_from([1, 2, 3]),
        "context_exchange": st.sampled_from(["ring", "all_to_all"]),
    }
)


def legal(choices: dict[str, Any]) -> Strategy:
    """The strategy of drawn choices, those left out that belong to a dimension that is not there."""
    if choices["tensor"] == 1:
        choices = {**choices, "sequence": False}
    if choices["context"] == 1:
        choices = {**choices, "context_exchange": "ring"}
    if choices["pipeline"] == 1:
        choices = {**choices, "virtual_stages": 1}
    return strategy(**choices)


def recompute(granularity: str, modules: str) -> str:
    """Paceline's name of a recomputation."""
    if granularity in ("none", "null"):
        return "none"
    return granularity if modules in ("", "core_attn") else f"{granularity}:{modules}"


FP8 = {"delayed": "fp8", "tensorwise": "fp8-current", "blockwise": "fp8-block", "mxfp8": "mxfp8"}


def of_megatron(text: str) -> dict[str, Any]:
    """The choices that Megatron's arguments say, as its own parser reads them."""
    parser = argparse.ArgumentParser()
    for name in ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size", "micro-batch-size"):
        parser.add_argument(f"--{name}", type=int, default=1)
    for name in ("global-batch-size", "seq-length", "num-virtual-stages-per-pipeline-rank", "recompute-num-layers"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("cp-comm-type", "recompute-granularity", "recompute-method", "fp8-format", "optimizer", "ckpt-format"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--data-parallel-sharding-strategy", default="no_shard")
    parser.add_argument("--pipeline-model-parallel-layout")
    parser.add_argument("--recompute-modules", nargs="*")
    parser.add_argument("--fp8-recipe")
    parser.add_argument("--tokenizer-type")
    for flag in (
        "sequence-parallel",
        "use-distributed-optimizer",
        "use-megatron-fsdp",
        "bf16",
        "fp16",
        "overlap-grad-reduce",
        "overlap-param-gather",
    ):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--no-gradient-accumulation-fusion", action="store_true")
    o, _ = parser.parse_known_args(shlex.split(text, comments=True))
    sharding = {"optim_grads": "zero2", "optim_grads_params": "zero3"}.get(o.data_parallel_sharding_strategy)
    virtual = o.num_virtual_stages_per_pipeline_rank or 1
    if o.pipeline_model_parallel_layout:
        virtual = len(o.pipeline_model_parallel_layout.split("|")) // o.pipeline_model_parallel_size
    return {
        "tensor": o.tensor_model_parallel_size,
        "pipeline": o.pipeline_model_parallel_size,
        "context": o.context_parallel_size,
        "global_batch_size": o.global_batch_size,
        "micro_batch_size": o.micro_batch_size,
        "sequence": o.sequence_parallel,
        "virtual_stages": virtual,
        "sharding": sharding or ("zero1" if o.use_distributed_optimizer else "ddp"),
        "recompute": recompute(o.recompute_granularity or "none", ",".join(o.recompute_modules or ())),
        "precision": FP8[o.fp8_recipe] if o.fp8_format else "bf16" if o.bf16 else "fp16" if o.fp16 else "fp32",
        "context_exchange": "all_to_all" if o.cp_comm_type == "a2a" else "ring",
    }


def of_nemo(text: str) -> dict[str, Any]:
    values = dict(line.split("=", 1) for line in shlex.split(text, comments=True)[2:])
    sharding = {"optim_grads": "zero2", "optim_grads_params": "zero3"}
    whole = "zero1" if values["ddp.use_distributed_optimizer"] == "true" else "ddp"
    mixed = {
        "bf16_mixed": "bf16",
        "bf16_with_fp8_delayed_scaling_mixed": "fp8",
        "bf16_with_fp8_current_scaling_mixed": "fp8-current",
        "bf16_with_fp8_subchannel_scaling_mixed": "fp8-block",
        "bf16_with_mxfp8_mixed": "mxfp8",
        "null": "fp32",
    }
    stages = int(values["model.pipeline_model_parallel_size"])
    layout = values.get("model.pipeline_model_parallel_layout")
    virtual = values.get("model.virtual_pipeline_model_parallel_size", "1")
    return {
        "tensor": int(values["model.tensor_model_parallel_size"]),
        "pipeline": stages,
        "context": int(values["model.context_parallel_size"]),
        "global_batch_size": int(values["train.global_batch_size"]),
        "micro_batch_size": int(values["train.micro_batch_size"]),
        "sequence": values["model.sequence_parallel"] == "true",
        "virtual_stages": len(layout.split("|")) // stages if layout else int(virtual),
        "sharding": sharding.get(values.get("ddp.data_parallel_sharding_strategy", ""), whole),
        "recompute": recompute(values["model.recompute_granularity"], values.get("model.recompute_modules", "").strip("[]")),
        "precision": mixed[values["mixed_precision"]],
        "context_exchange": "all_to_all" if values.get("model.cp_comm_type") == "a2a" else "ring",
    }


def of_call(text: str, name: str) -> dict[str, Any]:
    """The keywords of the call of a class in a Python file."""
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and ast.unparse(node.func) == name)
    return {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in next(calls).keywords}


def of_torchtitan(text: str) -> dict[str, Any]:
    mesh, training = of_call(text, "ParallelismConfig"), of_call(text, "TrainingConfig")
    again = next(kind for kind in ("FullAC", "SelectiveAC", "None") if f"activation_checkpoint={kind}" in text)
    low = next((precision for precision, name in CONVERTERS.items() if f"{name}.Config(" in text), "")
    stages = mesh["pipeline_parallel_degree"]
    parts = mesh.get("module_fqns_per_model_part", [[]] * stages)
    shared = mesh["data_parallel_shard_degree"] > 1 or "fsdp_reshard_after_forward" in mesh
    half = training.get("mixed_precision_param", "bfloat16") == "bfloat16"
    return {
        "tensor": mesh["tensor_parallel_degree"],
        "pipeline": stages,
        "context": mesh["context_parallel_degree"],
        "global_batch_size": training["global_batch_size"],
        "micro_batch_size": mesh.get("pipeline_parallel_microbatch_size", training["local_batch_size"]),
        "sequence": mesh.get("enable_sequence_parallel", False),
        "virtual_stages": len(parts) // stages,
        "sharding": {"always": "zero3", "never": "zero2"}[mesh["fsdp_reshard_after_forward"]] if shared else "ddp",
        "recompute": {"None": "none", "FullAC": "full", "SelectiveAC": "selective:op"}[again],
        "precision": low or ("bf16" if half else "fp32"),
        "context_exchange": "ring",
    }


def of_deepspeed(text: str) -> dict[str, Any]:
    config = json.loads(text)
    return {
        "tensor": config.get("tensor_parallel", {}).get("autotp_size", 1),
        "pipeline": 1,
        "context": 1,
        "global_batch_size": config["train_batch_size"],
        "micro_batch_size": config["train_micro_batch_size_per_gpu"],
        "sequence": False,
        "virtual_stages": 1,
        "sharding": ("ddp", "zero1", "zero2", "zero3")[config["zero_optimization"]["stage"]],
        "recompute": "full" if "activation_checkpointing" in config else "none",
        "precision": next((p for p in ("bf16", "fp16") if config.get(p, {}).get("enabled")), "fp32"),
        "context_exchange": "ring",
    }


READ = {"megatron": of_megatron, "nemo": of_nemo, "torchtitan": of_torchtitan, "deepspeed": of_deepspeed}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@given(meshes)
def test_options_read_back_are_the_strategy_or_it_is_refused(framework: str, choices: dict[str, Any]) -> None:
    chosen = legal(choices)
    try:
        text = emit(framework, chosen, LLAMA)
    except UserError as error:
        assert error.message.startswith(f"{framework} has no option for ") and error.fix
        return
    read = READ[framework](text)
    mesh = chosen.parallelism
    owners = {name: chosen if "batch" in name or name == "precision" else mesh for name in read}
    assert read == {name: plain(getattr(owner, name)) for name, owner in owners.items()}


def test_every_framework_takes_some_strategies() -> None:
    plain = strategy(sharding="zero3", grad_accum_steps=4)
    assert all(emit(name, plain, LLAMA) for name in FRAMEWORKS)
    assert "--recompute-granularity full" in emit("megatron", strategy(recompute=True), LLAMA)


def test_deepspeed_and_torchtitan_have_options_for_offload() -> None:
    for offload, keys in (("optimizer", {"offload_optimizer"}), ("weights+optimizer", {"offload_optimizer", "offload_param"})):
        zero = json.loads(emit("deepspeed", strategy(sharding="zero3", offload=offload), LLAMA))["zero_optimization"]
        assert {key for key in zero if key.startswith("offload")} == keys
        assert all(zero[key] == {"device": "cpu", "pin_memory": True} for key in keys)
    titan = emit("torchtitan", strategy(sharding="zero3", offload="weights+optimizer"), LLAMA)
    assert of_call(titan, "TrainingConfig")["enable_cpu_offload"] is True
    for target, offload in (("torchtitan", "optimizer"), ("megatron", "optimizer"), ("deepspeed", "optimizer+activations")):
        with pytest.raises(UserError, match=f"{target} has no option for offload"):
            emit(target, strategy(sharding="zero3", offload=offload), LLAMA)


def test_groups_of_experts_and_the_distributed_optimizer_have_options() -> None:
    experts = strategy(expert=8, sharding="distributed_optimizer")
    mixture = Workload.named("mixtral-8x7b")
    assert "--expert-model-parallel-size 8" in emit("megatron", experts, mixture)
    assert "--use-distributed-optimizer" in emit("megatron", experts, mixture)
    assert "model.expert_model_parallel_size=8" in emit("nemo", experts, mixture)
    titan = emit("torchtitan", strategy(expert=8, sharding="zero3"), LLAMA)
    assert of_call(titan, "ParallelismConfig")["expert_parallel_degree"] == 8
    assert of_deepspeed(emit("deepspeed", strategy(sharding="distributed_optimizer"), LLAMA))["sharding"] == "zero1"


def test_uneven_stages_are_laid_out_block_by_block() -> None:
    uneven = strategy(pipeline=4, virtual_stages=3, tensor=2, sequence=True, sharding="zero3", grad_accum_steps=8)
    parts = of_call(emit("torchtitan", uneven, LLAMA), "ParallelismConfig")["module_fqns_per_model_part"]
    names = [name for part in parts for name in part]
    assert names == ["tok_embeddings", *(f"layers.{n}" for n in range(32)), "norm", "lm_head"] and len(parts) == 12
    layout = emit("megatron", uneven.changed(sharding="zero1"), LLAMA)
    assert "'Et*2|t*2|t*3|" in layout and "|t*2L'" in layout
    sizes = [int(part.strip("EL'").removeprefix("t*")) for part in layout.split("layout ")[1].splitlines()[0].split("|")]
    assert sizes == [sum(name.startswith("layers") for name in part) for part in parts]


@pytest.mark.parametrize(
    ("framework", "choices", "why"),
    [
        ("megatron", {"compression": "terngrad", "exchange": "sharded"}, "compression terngrad"),
        ("megatron", {"pipeline": 4, "schedule": "gpipe", "grad_accum_steps": 4}, "schedule gpipe"),
        ("nemo", {"pipeline": 2, "sharding": "zero3", "grad_accum_steps": 4}, "zero3 with a pipeline"),
        ("nemo", {"optimizer": "lamb"}, "optimizer lamb"),
        ("megatron", {"precision": "tf32"}, "precision tf32"),
        ("torchtitan", {"sharding": "zero1"}, "zero1"),
        ("torchtitan", {"tensor": 2, "sequence": True}, "ddp with tensor"),
        ("torchtitan", {"context": 2, "context_exchange": "all_to_all", "sharding": "zero3"}, "context exchange"),
        ("torchtitan", {"optimizer": "lars"}, "optimizer lars"),
        ("torchtitan", {"precision": "fp16"}, "precision fp16"),
        ("deepspeed", {"pipeline": 2, "grad_accum_steps": 4}, "a pipeline of 2"),
        ("deepspeed", {"context": 2}, "context parallelism of 2"),
        ("deepspeed", {"tensor": 2, "sequence": True}, "sequence parallelism"),
        ("deepspeed", {"tensor": 2, "sharding": "zero3"}, "zero3 with tensor"),
        ("deepspeed", {"recompute": "selective"}, "recomputation selective"),
        ("deepspeed", {"precision": "fp8"}, "precision fp8"),
        ("deepspeed", {"sharding": "zero3", "shard_devices": 8}, "groups of 8"),
        ("megatron", {"sharding": "zero3", "shard_devices": 8}, "zero3 in groups"),
        ("megatron", {"recompute": "selective:op"}, "by operation"),
        ("torchtitan", {"recompute": "selective", "sharding": "zero3"}, "recomputation selective"),
        ("deepspeed", {"optimizer": "lars"}, "optimizer lars"),
        ("deepspeed", {"exchange": "sharded"}, "exchange sharded"),
        ("megatron", {"precision": "nvfp4"}, "precision nvfp4"),
        ("torchtitan", {"precision": "fp8"}, "precision fp8"),
        ("nemo", {"sharding": "zero3", "offload": "optimizer"}, "offload optimizer"),
        ("deepspeed", {"sharding": "zero3", "expert": 8}, "groups of experts"),
        ("torchtitan", {"expert": 8}, "groups of experts with ddp"),
        ("torchtitan", {"sharding": "zero3", "expert": 2, "expert_tensor": 4, "tensor": 4}, "divided among 4"),
        ("megatron", {"sync_every": 8}, "an exchange every 8 steps"),
        ("nemo", {"expert": 8, "expert_exchange": "once_per_node"}, "expert exchange once_per_node: it is not written here"),
        ("megatron", {"expert": 8}, "llama-2-7b has no experts"),
        ("jax", {}, "unknown target 'jax'"),
    ],
)
def test_what_a_framework_lacks_is_refused_with_the_reason(framework: str, choices: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        emit(framework, strategy(**choices), LLAMA)


def test_the_length_of_a_sequence_is_written() -> None:
    plain, long = strategy(sharding="zero3", grad_accum_steps=4), Workload.named("llama-2-7b", 2048)
    assert "--seq-length 2048\n" in emit("megatron", plain, long)
    assert "model.seq_length=2048\ndataset.seq_length=2048\n" in emit("nemo", plain, long)
    assert of_call(emit("torchtitan", plain, long), "TrainingConfig")["seq_len"] == 2048


@pytest.mark.parametrize("framework", ["megatron", "nemo", "torchtitan"])
def test_networks_that_would_be_trained_otherwise_are_refused(framework: str) -> None:
    plain = strategy(sharding="zero3", grad_accum_steps=4)
    with pytest.raises(UserError, match=facts("adapters", "llama-2-70b-lora", "all weights")):
        emit(framework, plain, Workload.named("llama-2-70b-lora"))
    for name in ("resnet-50", "stable-diffusion"):
        with pytest.raises(UserError, match=f"no option for {name}"):
            emit(framework, plain, Workload.named(name))


def test_the_distributed_optimizer_gathers_beside_the_next_forward_pass() -> None:
    shared, whole = (strategy(tensor=2, sharding=sharding) for sharding in ("zero1", "ddp"))
    assert "--overlap-grad-reduce\n--overlap-param-gather\n" in emit("megatron", shared, LLAMA)
    assert "--overlap-param-gather" not in emit("megatron", whole, LLAMA)
    assert "ddp.overlap_param_gather=true" in emit("nemo", shared, LLAMA)
    assert "ddp.overlap_param_gather=false" in emit("nemo", whole, LLAMA)


@pytest.mark.parametrize("framework", sorted(FRAMEWORKS))
def test_a_search_for_a_framework_leaves_out_what_it_refuses(framework: str) -> None:
    cluster = Cluster.named("2x8 H100", network="8x InfiniBand NDR")
    named: dict[str, Any] = {"deepspeed": {}, "torchtitan": {"tensors": (2,), "pipelines": (2, 4)}}.get(
        framework, {"tensors": (2,), "pipelines": (2, 4), "shardings": ("zero1",)}
    )
    tried = Space(
        clusters=(cluster,),
        batches=(32,),
        precisions=("bf16",),
        optimizer="adamw",
        **{**searched(framework), **named},
    )
    workload = Workload.named("llama-3.2-1b")
    for choice in plan(workload, tried, Goal("fastest")).ranking:
        assert emit(framework, choice.strategy, workload)


def test_hybrids_are_for_targets_whose_networks_scan() -> None:
    hybrid = Workload.named("nemotron-h-8b")
    for target in ("torchtitan", "megatron"):
        with pytest.raises(UserError, match="no blocks that scan"):
            emit(target, strategy(sharding="zero3"), hybrid)
    assert "use_megatron_fsdp=true" in emit("nemo", strategy(sharding="zero3"), hybrid)
    with pytest.raises(UserError, match="uneven stages"):
        emit("nemo", strategy(pipeline=4, last_stage_layers=10), hybrid)
