"""Steps on samples of different length: between those of the mean and of the longest, the same in plans, packed at the top."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.prediction import Prediction, Predictor
from paceline.strategy import Strategy
from paceline.workload import Workload

CLUSTER = Cluster.named("8 A100")
NETWORK = Workload.named("llama-3-8b", 2048).with_lora("r=16")
PREDICTOR = Predictor()


def predicted(network: Workload = NETWORK, **choices: Any) -> Prediction:
    strategy = Strategy.of(**{"world_size": 8, "global_batch_size": 64, "precision": "bf16", **choices})
    p = PREDICTOR.step(network, CLUSTER, strategy)
    many = PREDICTOR.many(network, [(CLUSTER, strategy)])
    assert many.step_s[0] == pytest.approx(p.step_time_s)
    assert many.memory_bytes[0] == pytest.approx(p.memory_bytes)
    return p


def test_padding_costs_time_up_to_the_longest_and_memory_of_it() -> None:
    short = predicted(Workload.named("llama-3-8b", 400).with_lora("r=16"))
    longest, plain = predicted(tokens_per_sample="mean=400,max=2048"), predicted()
    most = predicted(tokens_per_sample="mean=400,max=2048,padding=max")
    assert short.step_time_s < longest.step_time_s < plain.step_time_s
    assert most.step_time_s == pytest.approx(plain.step_time_s)
    assert longest.memory_bytes == most.memory_bytes == plain.memory_bytes
    assert most.useful_tokens_per_s == pytest.approx(64 * 400 / most.step_time_s)
    assert any("tokens a sample, of which" in sentence for sentence in longest.assumptions)


def test_smaller_micro_batches_pad_less_and_packing_least() -> None:
    text = "mean=400,max=2048"
    many, single = predicted(tokens_per_sample=text), predicted(tokens_per_sample=text, grad_accum_steps=8)
    packed = predicted(tokens_per_sample=f"{text},padding=packed")
    assert many.useful_tokens_per_s < single.useful_tokens_per_s < packed.useful_tokens_per_s
    assert packed.step_time_s < predicted().step_time_s  # a sample attends to itself alone
    assert packed.useful_tokens_per_s == pytest.approx(64 * 2048 / packed.step_time_s)


def test_pairs_pad_to_the_longest_of_both() -> None:
    plain, pairs = (predicted(tokens_per_sample="mean=400,max=2048", grad_accum_steps=8, task=task) for task in ("sft", "dpo"))
    assert pairs.parts["train"] > 2 * plain.step_time_s  # of two samples the longest is longer
    assert pairs.useful_tokens_per_s == pytest.approx(2 * 64 * 400 / pairs.step_time_s)


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        ("mean=400,max=4096", {}, "--seq-len 4096"),
        ("mean=400,max=1024", {}, "--seq-len 1024"),
        ("mean=400,max=2048", {"task": "grpo"}, "prompt="),
        ("mean=400,max=2048", {"context": 2}, "context"),
    ],
)
def test_what_does_not_go_together_is_refused(text: str, more: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as error:
        predicted(tokens_per_sample=text, **more)
    assert says in str(error.value)
