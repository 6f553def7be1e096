"""A strategy in the words of a tool, which its reader reads back."""

from __future__ import annotations

import pytest

from paceline.questions.asked import looked_up
from paceline.questions.own_settings import own_settings
from paceline.strategy import Strategy
from paceline.strategy.choices.values import plain
from paceline.strategy.frameworks import FRAMEWORKS

TOOLS = sorted({framework.tool for framework in FRAMEWORKS.values() if framework.tool})
SHARDED = Strategy.of(
    world_size=8, global_batch_size=32, grad_accum_steps=2, sharding="zero3", recompute="full", precision="bf16"
)
DIVIDED = Strategy.of(world_size=8, global_batch_size=16, tensor=2, pipeline=2, grad_accum_steps=4, precision="bf16")


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("strategy", [SHARDED, DIVIDED], ids=["sharded", "divided"])
def test_a_tool_reads_its_settings_back(tool: str, strategy: Strategy) -> None:
    settings = own_settings(tool, strategy)
    assert settings
    for key, text in settings:
        entry = looked_up(tool, (key,))
        assert entry is not None
        name, _, synonym = entry
        value = strategy.micro_batch_size if name == "micro_batch_size" else plain(strategy.choice(name))
        assert str(synonym.read(text)) == str(value), (key, text)


def test_names_are_those_of_the_tool() -> None:
    assert dict(own_settings("hf", SHARDED)) == {
        "per_device_train_batch_size": "2",
        "gradient_accumulation_steps": "2",
        "bf16": "true",
        "fsdp_config.sharding_strategy": "full_shard",
        "gradient_checkpointing": "true",
    }
    assert dict(own_settings("megatron", DIVIDED))["pipeline_model_parallel_size"] == "2"
