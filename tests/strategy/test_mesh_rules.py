"""Choices of a mesh: their texts in a description, and what they need of each other."""

from __future__ import annotations

from typing import Any

import pytest

from facts import facts
from paceline.errors import UserError
from paceline.strategy import Strategy
from paceline.strategy.strategy import titles


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        ({}, ""),
        ({"tensor": 2, "sequence": True, "context": 2, "pipeline": 2}, "tensor 2 with sequence, context 2, pipeline 2"),
        ({"expert": 4, "expert_tensor": 2, "expert_imbalance": 1.5}, "expert 4 x 2 at 1.5 times the mean"),
        ({"expert_tensor": 2}, "expert 1 x 2"),
        (
            {"pipeline": 2, "virtual_stages": 3, "grad_accum_steps": 2, "last_stage_layers": 2},
            "pipeline 2 of 3 parts each, 2 blocks in the last stage, 2 micro steps",
        ),
        ({"recompute": "full", "recompute_layers": 3}, "recomputing in 3 blocks a stage"),
        (
            {"recompute": "selective", "sharding": "zero3", "shard_devices": 4, "bucket_bytes": 100 << 20, "sync_every": 1},
            "shared by groups of 4, recomputing (selective), buckets of 105 MB",
        ),
    ],
)
def test_texts_are_in_the_order_of_a_description(choices: dict[str, Any], text: str) -> None:
    assert ", ".join(titles(Strategy.of(world_size=8, global_batch_size=64, **choices))) == text


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"expert_imbalance": 1.5}, "expert imbalance without expert parallelism"),
        ({"expert": 3}, facts("3 devices", "experts", "8")),
        ({"gather_bits": 8}, "gather_bits=8 with sharding ddp"),
        ({"first_stage_layers": 2}, facts("first_stage_layers 2", "one stage")),
        (
            {"pipeline": 2, "schedule": "gpipe", "virtual_stages": 2, "grad_accum_steps": 2},
            "2 virtual stages with schedule gpipe",
        ),
        ({"pipeline": 2, "virtual_stages": 2}, facts("2 virtual stages", "1 micro batches", "2 stages")),
        ({"sharding": "zero3", "shard_devices": 1}, "groups of one rank"),
    ],
)
def test_conditions_name_what_is_missing(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Strategy.of(world_size=8, global_batch_size=64, **choices)
