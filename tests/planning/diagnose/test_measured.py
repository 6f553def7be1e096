"""Measured speeds in words, as seconds of a step."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning.diagnose.measured import parse_speed
from paceline.planning.diagnose.question import RunQuestion
from paceline.prediction import ORDINARY
from paceline.verbs import strategy_of
from paceline.workload import Workload


def llama() -> RunQuestion:
    """Return Llama-2-7B on eight H100 with sequences of 4,096 tokens, 16 a step."""
    workload, cluster = Workload.named("llama-2-7b", 4096), Cluster.named("8 H100")
    choices = {"global_batch_size": 16, "precision": "bf16", "sharding": "zero3"}
    return RunQuestion(workload, cluster, strategy_of(workload, cluster, choices, ORDINARY), ORDINARY)


def seconds(text: str) -> float:
    question = llama()
    return parse_speed(text).seconds(question.workload, (question.cluster, question.strategy), question.step)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.58 s/step", 0.58),
        ("562 ms", 0.562),
        ("4 s/it", 4.0),
        ("12 it/s", 1 / 12),
        ("8 samples/s", 2.0),
        ("1 sequence/s per GPU", 2.0),
        ("65,536 tokens/s", 1.0),
        ("8.192k tok/s/GPU", 1.0),
        ("8192 wps per device", 1.0),
    ],
)
def test_forms_of_one_speed(text: str, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)


def test_times_slower_is_relative_to_the_prediction() -> None:
    assert seconds("3.4 times slower") == pytest.approx(3.4 * llama().step.step_time_s)


def test_mfu_and_flops_are_those_of_palm() -> None:
    """Chowdhery et al. 2022, appendix B: 6 N + 12 L H Q T FLOPs a token, with the dense peak of 989 TFLOPS."""
    flops = (6 * 6.74e9 + 12 * 32 * 4096 * 4096) * 16 * 4096 / 8
    assert seconds("40 % MFU") == pytest.approx(flops / (0.4 * 989e12), rel=0.04)
    assert seconds("395.6 TFLOPS") == pytest.approx(seconds("40% mfu"), rel=1e-3)


@pytest.mark.parametrize(("text", "part"), [("5", "no unit"), ("fast", "not a speed"), ("0 s", "above 0")])
def test_texts_that_are_no_speed(text: str, part: str) -> None:
    with pytest.raises(UserError, match=part):
        parse_speed(text)


def test_tokens_of_images_are_refused() -> None:
    workload, cluster = Workload.named("resnet-50"), Cluster.named("A100")
    question = RunQuestion(workload, cluster, strategy_of(workload, cluster, {"global_batch_size": 64}, ORDINARY), ORDINARY)
    with pytest.raises(UserError, match="no tokens"):
        parse_speed("9 tokens/s").seconds(workload, (cluster, question.strategy), question.step)
