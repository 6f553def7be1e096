"""Bounds of layouts on samples of different length: a network that computes no more than any step."""

from __future__ import annotations

import pytest

from paceline.hardware import Cluster
from paceline.prediction import Predictor
from paceline.prediction.layouts.many_lengths import least_network
from paceline.strategy import Strategy
from paceline.strategy.tasks.lengths import SAME_LENGTHS, SampleLengths
from paceline.workload import Workload

NETWORK, CLUSTER, PREDICTOR = Workload.named("llama-3-8b", 2048), Cluster.named("8 A100"), Predictor()


@pytest.mark.parametrize("text", ["mean=300,max=2048", "mean=300,max=2048,padding=packed"])
def test_the_least_network_takes_no_longer(text: str) -> None:
    strategy = Strategy.of(world_size=8, tensor=2, global_batch_size=8, precision="bf16", sharding="zero1")
    least = PREDICTOR.step(least_network(NETWORK, SampleLengths.of(text)), CLUSTER, strategy)
    own = PREDICTOR.step(NETWORK, CLUSTER, strategy.changed(tokens_per_sample=text))
    assert least.step_time_s <= own.step_time_s * (1 + 1e-9)
    assert least.memory_bytes <= own.memory_bytes * (1 + 1e-9)
    assert least_network(NETWORK, SAME_LENGTHS) is NETWORK
