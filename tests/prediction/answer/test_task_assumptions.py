"""Sentences on a task: each part with its seconds, where generation runs, and what the reference is."""

from __future__ import annotations

import pytest

from paceline.hardware import Cluster
from paceline.prediction import Predictor
from paceline.strategy import Strategy
from paceline.workload import Workload

NETWORK = Workload.named("llama-3-8b", 1024)


@pytest.mark.parametrize(
    ("task", "lora", "says"),
    [
        ("dpo", "", "has its own weights"),
        ("dpo", "r=16", "is the network without adapters"),
        ("dpo:reference=precomputed", "", "were computed before"),
        ("grpo", "", "vLLM on the devices that train reserves 30%"),
        ("grpo:engine=hf", "", "host launches each kernel"),
        ("grpo:rate=900,engine=server", "", "900 tokens/s a device (server)"),
    ],
)
def test_each_task_says_what_it_assumes(task: str, lora: str, says: str) -> None:
    network = NETWORK.with_lora(lora) if lora else NETWORK
    strategy = Strategy.of(world_size=8, global_batch_size=64, precision="bf16", sharding="zero3", task=task)
    p = Predictor().step(network, Cluster.named("8 H100"), strategy)
    sentences = [a for a in p.assumptions if a.kind == "parts"]
    assert any(says in sentence for sentence in sentences), sentences
    assert all(name in sentences[0] for name in p.parts)
