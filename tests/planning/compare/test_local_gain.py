"""The gain of local steps, where a step waits for the network between nodes."""

from __future__ import annotations

import re

import pytest

from paceline.hardware import Cluster
from paceline.planning.compare.local_gain import local_gain
from paceline.prediction import ORDINARY
from paceline.prediction.learning.local_loss import further_tokens
from paceline.strategy import Strategy
from paceline.workload import Workload

GPT2 = Workload.named("gpt2", 128)
PLAIN = {"world_size": 4, "global_batch_size": 64, "precision": "bf16", "optimizer": "adamw"}


def gain(on: str, network: str = "gpt2", **choices: object) -> tuple[str, float]:
    workload, cluster = GPT2 if network == "gpt2" else Workload.named(network), Cluster.named(on)
    strategy = Strategy.of(**PLAIN | choices)  # type: ignore[arg-type]
    now = ORDINARY.step(workload, cluster, strategy)
    return local_gain(workload, cluster, strategy, ORDINARY, now), now.step_time_s


@pytest.mark.parametrize("choices", [{}, {"sharding": "zero3"}, {"compression": "int8"}])
def test_slow_links_gain_by_the_range_of_further_tokens(choices: dict[str, object]) -> None:
    text, _ = gain("2x2 A100, 1Gb/s", **choices)
    known = further_tokens(GPT2.num_parameters, 2, 30)
    found = re.search(r"; diloco: ([\d.]+) to ([\d.]+) times as fast to an equal loss", text)
    assert known is not None
    if found:  # two figures of which the larger has fewer further tokens
        assert float(found[2]) / float(found[1]) == pytest.approx(known.high / known.low, rel=0.02)
    assert "each node a worker" in text and "times as fast to an equal loss by published laws" in text
    assert "(sparseloco" not in text or "unknown, its authors report" in text


@pytest.mark.parametrize("sharding", ["ddp", "zero2", "zero3"])
def test_a_node_of_one_device_shards_nothing_alone(sharding: str) -> None:
    assert "each node a worker" in gain("4x1 A100, 1Gb/s", sharding=sharding)[0]


def test_fast_links_one_node_and_local_steps_gain_nothing() -> None:
    assert gain("2x2 A100, 800Gb/s InfiniBand")[0] == ""
    assert gain("4 A100")[0] == ""
    assert gain("2x2 A100, 1Gb/s", sync_every=30, worker_devices=2)[0] == ""


def test_without_a_law_the_further_samples_are_unknown() -> None:
    assert "how many more samples they need is unknown" in gain("4x1 A100, 100Mb/s", "resnet-50", optimizer="momentum")[0]
