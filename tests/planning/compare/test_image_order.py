"""Gain of channels last in answers of ``plan`` and ``ask``."""

from __future__ import annotations

import sys

import pytest

from paceline import Cluster, Workload
from paceline.planning.ask.ask import ask
from paceline.planning.compare.image_order import faster_format
from paceline.prediction import ORDINARY, StepPredictor
from paceline.strategy import Strategy

CLUSTER = Cluster.named("4 RTX 3090")


def said(network: str, predictor: StepPredictor = ORDINARY, **choices: str) -> str:
    strategy = Strategy.of(world_size=4, global_batch_size=256, precision="bf16", **choices)
    workload = Workload.named(network)
    return faster_format(workload, CLUSTER, strategy, predictor, predictor.step(workload, CLUSTER, strategy))


def test_the_gain_is_the_ratio_of_the_two_steps() -> None:
    steps = {
        order: ORDINARY.step(
            Workload.named("resnet-50"),
            CLUSTER,
            Strategy.of(world_size=4, global_batch_size=256, precision="bf16", memory_format=order),
        ).step_time_s
        for order in ("contiguous", "channels_last")
    }
    assert f"{steps['contiguous'] / steps['channels_last']:.2f}x" in said("resnet-50")


@pytest.mark.parametrize("order", ["contiguous", "channels_last"])
def test_a_named_order_and_networks_and_software_without_a_gain_say_nothing(order: str) -> None:
    assert not said("resnet-50", memory_format=order)
    assert not said("gpt2") and not said("resnet-50", ORDINARY.changed(constants=None, framework="tuned"))


def test_ask_takes_an_order_and_else_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["paceline.planning.ask.ask"], "upgrades", lambda *_: ())  # most of the time of an answer
    workload = Workload.named("resnet-50")
    usual, named = ask(workload, CLUSTER), ask(workload, CLUSTER, choices={"memory_format": "channels_last"})
    assert "channels last" in usual.memory_format and not named.memory_format
    assert named.choice.strategy.memory_format == "channels_last"
    assert named.choice.prediction.samples_per_s > usual.choice.prediction.samples_per_s
