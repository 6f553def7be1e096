"""Files for programs of fine-tuning: read back they are the strategy, and what a program lacks is refused by name."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from paceline import Cluster, Strategy, Workload
from paceline.errors import UserError
from paceline.planning.emit.job import EmittedJob
from paceline.planning.emit.targets import TARGETS, emitted
from paceline.strategy.frameworks import FRAMEWORKS

LLAMA = Workload.named("llama-3-8b", 2048)
ONE, EIGHT, TWO = Cluster.named("H100"), Cluster.named("8 H100"), Cluster.named("2x8 H100", network="400Gb/s")


def written(target: str, cluster: Cluster, workload: Workload = LLAMA, **choices: Any) -> str:
    usual = {"world_size": cluster.world_size, "global_batch_size": 64, "precision": "bf16", "optimizer": "adamw"}
    return emitted(EmittedJob(target, Strategy.of(**{**usual, **choices}), workload, cluster)).text


def arguments(text: str) -> dict[str, str]:
    """Arguments of all calls of a script of Python by name, as text."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return {keyword.arg: ast.unparse(keyword.value) for call in calls for keyword in call.keywords if keyword.arg}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_target_of_each_framework_exists(framework: str) -> None:
    assert FRAMEWORKS[framework].emits in ("", *TARGETS)


SHARED = {"sharding_strategy": "'FULL_SHARD'"}
GROUPS = {"num_nodes": "2", "device_mesh": "(2, 8)", "sharding_strategy": "'HYBRID_SHARD'"}


@pytest.mark.parametrize(
    ("cluster", "choices", "says"),
    [
        (ONE, {}, {"strategy": "'auto'", "devices": "1", "precision": "'bf16-mixed'"}),
        (EIGHT, {"bucket_bytes": 50 << 20}, {"bucket_cap_mb": "50"}),
        (EIGHT, {"sharding": "zero2"}, {"sharding_strategy": "'SHARD_GRAD_OP'"}),
        (EIGHT, {"sharding": "zero3", "grad_accum_steps": 4}, {**SHARED, "accumulate_grad_batches": "4"}),
        (TWO, {"sharding": "zero3", "shard_devices": 8}, GROUPS),
        (EIGHT, {"sharding": "zero3", "recompute": "full"}, {**SHARED, "activation_checkpointing_policy": "{Block}"}),
        (EIGHT, {"sharding": "zero3", "offload": "weights+optimizer"}, {**SHARED, "cpu_offload": "True"}),
    ],
)
def test_the_trainer_of_lightning_has_the_strategy(cluster: Cluster, choices: dict[str, Any], says: dict[str, str]) -> None:
    read = arguments(written("lightning", cluster, **choices))
    assert {name: read.get(name) for name in says} == says
    assert "checkpoint(block" in written("lightning", EIGHT, recompute="full")  # DDP has no option for it


def test_recipes_of_torchtune_have_the_strategy() -> None:
    text = written("torchtune", EIGHT, sharding="zero3", grad_accum_steps=2, recompute="full", optimizer="paged_adamw_8bit")
    read = dict(line.split("=") for line in text.splitlines() if "=" in line)
    assert (read["batch_size"], read["gradient_accumulation_steps"]) == ("4", "2")
    assert (read["enable_activation_checkpointing"], read["fsdp_reshard_after_forward"]) == ("True", "True")
    assert read["optimizer._component_"] == "bitsandbytes.optim.PagedAdamW8bit" and text.endswith("~optimizer.fused\n")
    job = EmittedJob("torchtune", Strategy.of(world_size=1, global_batch_size=2, precision="bf16"), LLAMA, ONE)
    assert TARGETS["torchtune"].launch(job, "F") == (
        "grep -v '^#' F | xargs tune run full_finetune_single_device --config llama3/8B_full_single_device"
    )


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"recompute": "full", "offload": "checkpoints"}, "'unsloth'"),
        ({"recompute": "full"}, "True"),
        ({}, "False"),
    ],
)
def test_a_script_of_unsloth_has_the_strategy(choices: dict[str, Any], says: str) -> None:
    read = arguments(written("unsloth", ONE, optimizer="adamw_8bit", grad_accum_steps=16, **choices))
    assert read["use_gradient_checkpointing"] == says and read["optim"] == "'adamw_8bit'"
    assert (read["per_device_train_batch_size"], read["gradient_accumulation_steps"]) == ("4", "16")


@pytest.mark.parametrize(
    ("target", "cluster", "workload", "choices", "why"),
    [
        ("lightning", EIGHT, LLAMA, {"sharding": "zero1"}, "zero1"),
        ("lightning", EIGHT, LLAMA, {"compression": "terngrad", "exchange": "sharded"}, "terngrad"),
        ("lightning", Cluster.named("8 TPU v4"), LLAMA, {}, "TPU v4"),
        ("torchtune", EIGHT, LLAMA, {}, "ddp"),
        ("torchtune", EIGHT, Workload.named("gpt2"), {"sharding": "zero3"}, "llama-3-8b"),
        ("torchtune", EIGHT, LLAMA, {"sharding": "zero3", "optimizer": "lamb"}, "optimizer lamb"),
        ("unsloth", EIGHT, LLAMA, {"sharding": "zero3"}, "zero3"),
        ("unsloth", ONE, Workload.named("llama-3-8b", 2048, lora="r=8"), {}, "adapters"),
    ],
)
def test_what_a_program_lacks_is_refused(
    target: str, cluster: Cluster, workload: Workload, choices: dict[str, Any], why: str
) -> None:
    with pytest.raises(UserError) as refused:
        written(target, cluster, workload, **choices)
    assert f"{target} has no option for" in refused.value.message and why in str(refused.value)
