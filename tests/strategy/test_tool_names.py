"""Every value that a tool's name stands for is legal here, and no name of a tool means two choices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.questions.asked import STATED
from paceline.strategy.choices.synonyms import PER_NODE, TOOLS
from paceline.strategy.choices.tool_names import CONTEXT, OFFLOAD, OPTIMIZER, RECOMPUTE, SHARDING, count
from paceline.strategy.strategy import CHOICES


def meanings() -> Iterator[tuple[str, Any]]:
    """Our values of all mappings, by the name of the choice."""
    for name, item in CHOICES.items():
        for each in item.synonyms:
            for value in each.values.values() if isinstance(each.values, Mapping) else ():
                yield from (value if isinstance(value, Mapping) else {name: value}).items()


def test_every_value_is_legal() -> None:
    stated = [(name, value) for name, value in meanings() if name in CHOICES and value not in (None, PER_NODE, "cpu")]
    for name, value in stated:
        CHOICES[name].values.check(value, name)
    assert {name for name, _ in meanings()} <= STATED.keys()
    assert len(stated) > 100


def test_names_are_of_known_tools_and_mean_one_choice_each() -> None:
    names = Counter((tool, each.name, name) for name, item in CHOICES.items() for each in item.synonyms for tool in each.tools)
    assert {tool for tool, _, _ in names} <= TOOLS.keys() and max(names.values()) == 1
    assert max(Counter((tool, name) for tool, name, _ in names).values()) == 1


@pytest.mark.parametrize(
    ("group", "name", "value", "ours"),
    [
        (SHARDING, "fsdp", "full_shard auto_wrap", {"sharding": "zero3"}),
        (SHARDING, "fsdp", ["shard_grad_op", "offload"], {"sharding": "zero2", "offload": "weights+optimizer"}),
        (SHARDING, "fsdp", "hybrid_shard auto_wrap", {"sharding": "zero3", "shard_devices": PER_NODE}),
        (SHARDING, "fsdp", False, None),
        (SHARDING, "parallelism.data_parallel_shard_degree", -1, "zero3"),
        (SHARDING, "parallelism.data_parallel_shard_degree", 1, "ddp"),
        (SHARDING, "parallelism.data_parallel_shard_degree", 8, {"sharding": "zero3", "shard_devices": 8}),
        (SHARDING, "strategy", "deepspeed_stage_3_offload", {"sharding": "zero3", "offload": "optimizer"}),
        (SHARDING, "strategy", "ddp_find_unused_parameters_true", "ddp"),
        (SHARDING, "fsdp_sharding_strategy", 1, "zero3"),
        (OPTIMIZER, "optim", "adamw_torch_fused", {"optimizer": "adamw", "update": "fused"}),
        (OPTIMIZER, "optim", "paged_adamw_8bit", "paged_adamw_8bit"),
        (RECOMPUTE, "recompute_modules", "core_attn mlp", "selective:core_attn,mlp"),
        (RECOMPUTE, "recompute_modules", ["moe_act"], "selective:moe_act"),
        (CONTEXT, "sp_size", 4, {"context": 4, "context_exchange": "all_to_all"}),
        (CONTEXT, "sp_size", 1, 1),
        (OFFLOAD, "zero_optimization.offload_optimizer.device", "cpu", "optimizer"),
    ],
)
def test_values_of_functions(group: Any, name: str, value: object, ours: object) -> None:
    assert next(each for each in group if each.name == name).read(value) == ours


def test_counts() -> None:
    assert [count(value) for value in (8, "8", 0, -1)] == [8, 8, None, None]
    for refused in (
        lambda: count("many"),
        lambda: next(each for each in SHARDING if each.name == "fsdp").read("half_shard"),
        lambda: next(each for each in SHARDING if each.name == "strategy").read("horovod"),
    ):
        with pytest.raises(UserError):
            refused()
