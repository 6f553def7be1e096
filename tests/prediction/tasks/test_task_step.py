"""Steps of tasks: their parts, against a plain step of as many sequences and against closed forms."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.prediction import Prediction, Predictor
from paceline.strategy import Strategy
from paceline.workload import Workload

NETWORK = Workload.named("llama-3-8b", 1024)
ADAPTED = NETWORK.with_lora("r=16,targets=all-linear")
CLUSTER = Cluster.named("8 H100")
PREDICTOR = Predictor()
ZERO3: dict[str, Any] = {"sharding": "zero3"}
CASES: list[tuple[Workload, dict[str, Any]]] = [
    (NETWORK, {**ZERO3, "task": "dpo"}),
    (NETWORK, {"sharding": "zero1", "tensor": 2, "task": "dpo"}),
    (NETWORK, {"sharding": "zero1", "pipeline": 2, "grad_accum_steps": 2, "task": "dpo"}),
    (ADAPTED, {"task": "dpo"}),
    (NETWORK, {**ZERO3, "grad_accum_steps": 2, "recompute": "full", "task": "grpo:completion=768,reward=2s"}),
    (NETWORK, {"sharding": "zero1", "tensor": 4, "task": "grpo:completion=768"}),
    (ADAPTED, {"task": "grpo:completion=768,engine=hf,old=no"}),
]


def predicted(network: Workload, batch: int = 64, **choices: Any) -> Prediction:
    return PREDICTOR.step(network, CLUSTER, Strategy.of(world_size=8, global_batch_size=batch, precision="bf16", **choices))


@pytest.mark.parametrize(("network", "choices"), CASES)
def test_parts_and_waits_sum_to_the_step_and_plans_see_the_same(network: Workload, choices: dict[str, Any]) -> None:
    p = predicted(network, **choices)
    assert sum(p.parts.values()) == pytest.approx(p.step_time_s)
    assert sum(p.exposed.values()) == pytest.approx(p.step_time_s)
    assert sum(p.memory.values()) == pytest.approx(p.memory_bytes)
    assert p.low_s < p.step_time_s < p.high_s
    strategy = Strategy.of(**p.strategy)
    many = PREDICTOR.many(network, [(CLUSTER, strategy), (CLUSTER, strategy.changed(task="sft"))])
    assert many.step_s[0] == pytest.approx(p.step_time_s)
    assert many.memory_bytes[0] == pytest.approx(p.memory_bytes)
    assert many.step_s[1] == pytest.approx(predicted(network, **{**choices, "task": "sft"}).step_time_s)
    assert p.memory_timeline().peak_bytes == pytest.approx(p.memory_bytes)
    assert p.memory_timeline().passes[-1].end_s == pytest.approx(p.step_time_s, rel=0.2)
    assert p.explain().count(" reference ") >= 1 and p.to_json()["parts"] == p.parts


def test_a_pair_is_two_sequences_and_the_reference_a_third_of_their_passes() -> None:
    pairs, sequences = predicted(NETWORK, 8, **ZERO3, task="dpo"), predicted(NETWORK, 16, **ZERO3)
    assert pairs.parts["train"] == pytest.approx(sequences.step_time_s)
    assert pairs.samples_per_s == pytest.approx(8 / pairs.step_time_s)
    assert 0.2 < pairs.parts["reference"] / pairs.parts["train"] < 0.4
    assert pairs.memory["reference weights"] == pytest.approx(2 * NETWORK.num_parameters / 8)  # 16 bits, shared out
    before = predicted(NETWORK, 8, **ZERO3, task="dpo:reference=precomputed")
    assert before.step_time_s == pytest.approx(sequences.step_time_s)
    assert before.memory_bytes == pytest.approx(sequences.memory_bytes)


def test_adapters_need_no_second_copy_and_their_reference_is_the_network_without_them() -> None:
    p = predicted(ADAPTED, 8, task="dpo")
    assert "reference weights" not in p.memory
    assert p.parts["reference"] == pytest.approx(predicted(NETWORK, 8, task="dpo").parts["reference"], rel=0.02)


def test_rewards_of_a_stated_rate_have_closed_seconds() -> None:
    p = predicted(NETWORK, 64, **ZERO3, task="grpo:completion=768,engine=server,rate=2000,reward=3s,reference=none")
    assert p.parts["generate"] == pytest.approx(64 / 8 * 768 / 2000)
    assert p.parts["reward"] == 3.0
    assert list(p.parts) == ["generate", "old policy", "reward", "train"]
    assert "generation engine" not in p.memory
    whole = predicted(NETWORK, 64, **ZERO3)
    assert p.parts["train"] < whole.step_time_s and p.memory["activations"] < whole.memory["activations"]  # fewer logits


def test_what_no_task_can_train_is_refused() -> None:
    for network, task, says in (
        (Workload.named("resnet-50"), "dpo", "language models"),
        (Workload.named("bert-large"), "grpo:completion=512", "--seq-len"),
        (NETWORK, "grpo:completion=768,prompt=512", "--seq-len 1280"),
        (NETWORK, "grpo:samples=7", "multiple of 7"),
        (NETWORK, "grpo:share=0.1", "share=0.5"),
    ):
        with pytest.raises(UserError) as error:
            predicted(network, 64, task=task)
        assert says in str(error.value)
