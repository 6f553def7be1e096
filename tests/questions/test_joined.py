"""Facts that follow from several: adapters, offload, groups, micro batches and amounts."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.errors import UserError
from paceline.questions.facts import StatedFact
from paceline.questions.joined import joined_facts, sizes
from paceline.strategy.choices.synonyms import PER_NODE


def facts(stated: dict[str, Any]) -> dict[str, StatedFact]:
    parts = {"offload": True}
    return {name: StatedFact(name, value, "f", f"{name} {value}", added=name in parts) for name, value in stated.items()}


NODES = {"nodes": 2, "devices_per_node": 8}


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        ({"adapter": "lora", "lora_rank": 32, "lora_targets": "all-linear"}, {"lora": "lora,r=32,targets=all-linear"}),
        ({"adapter": "qlora", "lora_rank": 8, "lora_dora": True}, {"lora": "qdora,r=8"}),
        ({"lora_targets": "q_proj"}, {}),
        ({"sharding": "zero3", "offload": "cpu"}, {"sharding": "zero3", "offload": "weights+optimizer"}),
        ({"sharding": "zero2", "offload": "cpu"}, {"sharding": "zero2", "offload": "optimizer"}),
        ({"offload": "checkpoints"}, {}),
        ({"offload": "activations", "recompute": "full"}, {"offload": "checkpoints", "recompute": "full"}),
        ({"offload": "optimizer+weights+optimizer"}, {"offload": "weights+optimizer"}),
        ({"world_size": 16, "nodes": 2}, NODES),
        ({"world_size": 16, "devices_per_node": 8}, NODES),
        ({"world_size": 16, **NODES}, NODES),
        ({**NODES, "sharding": "zero3", "shard_devices": PER_NODE}, {**NODES, "sharding": "zero3", "shard_devices": 8}),
        ({"devices_per_node": 8, "sharding": "zero3", "shard_devices": PER_NODE}, {"devices_per_node": 8, "sharding": "zero3"}),
        ({**NODES, "sharding": "zero3", "copies": 4}, {**NODES, "sharding": "zero3", "shard_devices": 4}),
        ({**NODES, "sharding": "zero3", "copies": 1}, {**NODES, "sharding": "zero3"}),
        ({**NODES, "sharding": "ddp", "copies": 16}, {**NODES, "sharding": "ddp"}),
        ({**NODES, "sharding": "zero3", "shard_devices": 16}, {**NODES, "sharding": "zero3"}),
        (
            {"pipeline": 2, "micro_batch_size": 8, "pipeline_micro_batch": 2},
            {"pipeline": 2, "micro_batch_size": 2, "grad_accum_steps": 4},
        ),
        ({"pipeline_micro_batch": 1, "micro_batch_size": 8}, {"micro_batch_size": 8, "grad_accum_steps": 1}),
        ({"products_in_fp32": "tf32", "sixteen_bits": True}, {}),
        ({"precision": "bf16", "products_in_fp32": "tf32"}, {"precision": "bf16"}),
        ({"products_in_fp32": "tf32"}, {"precision": "tf32"}),
        ({"lora_bits": 4}, {}),
        ({"num_layers": 32, "pipeline": 4, "layers_per_virtual_stage": 2}, {"pipeline": 4, "virtual_stages": 4}),
        (
            {"recompute": "full", "recompute_method": "block", "recomputed_layers": 3},
            {"recompute": "full", "recompute_layers": 3},
        ),
        ({"recompute": "full", "recompute_method": "uniform", "recomputed_layers": 1}, {"recompute": "full"}),
        ({"steps": 100, "global_batch_size": 8, "epochs": 3}, {"global_batch_size": 8, "samples": 800}),
        (
            {"steps": 10, "micro_batch_size": 2, "grad_accum_steps": 3, **NODES, "tensor": 4},
            {"micro_batch_size": 2, "grad_accum_steps": 3, **NODES, "tensor": 4, "samples": 240},
        ),
        ({"steps": 10, "tokens": "1B"}, {"tokens": "1B"}),
        ({"steps": 10, "epochs": 1}, {"epochs": 1}),
    ],
)
def test_joined(stated: dict[str, Any], found: dict[str, Any]) -> None:
    assert {name: fact.value for name, fact in joined_facts(facts(stated))[0].items()} == found


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"world_size": 15, "nodes": 2}, "no multiple of 2 nodes"),
        ({"world_size": 15, "devices_per_node": 8}, "no multiple of f: devices_per_node 8"),
        ({"world_size": 8, **NODES}, "is not f: nodes 2 times"),
        ({"sharding": "zero3", "shard_devices": PER_NODE}, "no machines are named.*--shard-devices"),
        ({**NODES, "sharding": "zero3", "copies": 3}, "does not divide the 16 replicas"),
        ({"pipeline": 2, "micro_batch_size": 3, "pipeline_micro_batch": 2}, "no multiple"),
    ],
)
def test_what_does_not_go_together_is_an_error(stated: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        joined_facts(facts(stated))


def test_what_cannot_be_derived_is_said() -> None:
    assert "batch of all devices is unknown" in joined_facts(facts({"steps": 10}))[1][0]
    assert "number of devices is unknown" in joined_facts(facts({"sharding": "zero3", "copies": 2}))[1][0]
    assert "--virtual-stages" in joined_facts(facts({"pipeline": 2, "layers_per_virtual_stage": 2}))[1][0]


def test_sizes() -> None:
    assert sizes(facts({"cluster": "2x8 A100"})) == (2, 8)
    assert sizes(facts({"device": "p4d.24xlarge", "nodes": 3})) == (3, 8)
    assert sizes(facts(NODES)) == (2, 8) and sizes({}) is None and sizes(facts({"cluster": "nothing"})) is None
