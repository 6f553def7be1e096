"""A model sharded as a strategy says sends the bytes that the strategy predicts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import sharded_models
from distributed import launch
from paceline.errors import UserError
from paceline.models import build
from paceline.strategy import Strategy
from paceline.strategy.sharding import units
from paceline.training.exchanges.gradients.tensor_layout import numbered
from paceline.training.runs.shard import shard, unit_modules

RULE = {"min_elements": 10, "last_layer": False, "names": []}
CASES: list[dict[str, Any]] = [
    {"sharding": sharding, "compression": compression, **more}
    for sharding in ("zero2", "zero3")
    for compression, more in [
        ("dense", {}),
        ("bf16", {}),
        ("int8", {}),
        ("int8", {"exchange": "ring"}),
        ("terngrad", {"dense_rule": RULE}),
        ("terngrad", {"dense_rule": RULE, "exchange": "ring"}),
        ("topk", {"dense_rule": RULE}),
        ("dense", {"exchange": "sharded"}),
        ("dense", {"gather_bits": 16}),
        ("int8", {"gather_bits": 8}),
    ]
]
FOUR: list[dict[str, Any]] = [
    {"compression": "int8", "exchange": "hierarchical", "ranks_per_node": 2},
    {"compression": "dense", "shard_devices": 2},
    {"compression": "int8", "shard_devices": 2},
    {"compression": "terngrad", "shard_devices": 2, "exchange": "ring", "dense_rule": RULE},
    {"compression": "topk", "shard_devices": 2, "dense_rule": RULE},
]


@pytest.mark.everyday("3-0", others="long")
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("workers", [2, 3])
def test_bytes_over_all_ranks(workers: int, half: int) -> None:
    """The two shardings take turns in a half of the cases."""
    cases = [case for number, case in enumerate(CASES) if (number + number // 10) % 2 == half]
    for result in launch(sharded_models.as_predicted, workers, cases=cases):
        assert [measured for measured, _ in result] == [predicted for _, predicted in result]


def test_bytes_over_nodes_and_between_copies() -> None:
    for result in launch(sharded_models.as_predicted, 4, cases=[{"sharding": "zero3", **case} for case in FOUR]):
        assert [measured for measured, _ in result] == [predicted for _, predicted in result]


@pytest.mark.parametrize("name", ["lenet5", "alexnet", "resnet-18", "gpt2"])
@pytest.mark.parametrize("bucket_bytes", [1 << 14, 25 << 20])
def test_modules_of_a_unit_hold_its_tensors(name: str, bucket_bytes: int) -> None:
    with torch.device("meta"):
        network = build(name)
    trained = list(numbered(network.named_parameters()).values())
    wanted = [{t.name for t in unit} for unit in units(trained, bucket_bytes)]
    taken: set[int] = set()
    found = []
    names = {id(p): n for n, p in network.named_parameters()}
    for modules in unit_modules(network, bucket_bytes):
        own = {id(p) for module in modules for p in module.parameters()} - taken
        taken |= own
        if own:
            found.append({names[p] for p in own})
    assert sorted(map(sorted, found)) == sorted(map(sorted, wanted))


def test_other_shardings_are_refused() -> None:
    with pytest.raises(UserError, match="FSDP2 does not run sharding zero1"):
        shard(nn.Linear(2, 2), Strategy.of(world_size=2, global_batch_size=2, sharding="zero1"))
