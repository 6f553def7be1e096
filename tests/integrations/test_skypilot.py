"""Seconds for SkyPilot's optimizer: those of the predictor on the machines that its resources mean."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

import paceline
from paceline.errors import UserError
from paceline.integrations.skypilot import TimeEstimator, machines


def resources(instance_type: str | None = None, **accelerators: float) -> Any:
    """Resources as ``sky.Resources`` has them."""
    named = {name.replace("_", "-"): count for name, count in accelerators.items()}
    return SimpleNamespace(accelerators=named or None, instance_type=instance_type)


def test_seconds_are_those_of_the_prediction() -> None:
    estimate = TimeEstimator("resnet-50", samples="1.2M", setup_s=60)
    speed = paceline.predict("resnet-50", "8 V100 SXM2 32GB").samples_per_s
    slower = paceline.predict("resnet-50", "8 V100 PCIe 32GB").samples_per_s
    assert estimate(resources(V100_32GB=8)) == math.ceil(60 + 1.2e6 / min(speed, slower))
    assert "clouds use this name for several devices: 8 V100 SXM2 32GB " in estimate.remarks["{'V100-32GB': 8}"]
    meant = TimeEstimator("resnet-50", samples=1.2e6, devices={"V100-32GB": "V100 SXM2 32GB"})
    assert meant(resources(V100_32GB=8)) == math.ceil(1.2e6 / speed) and meant.remarks == {}
    text = TimeEstimator("gpt2", tokens="1M", num_nodes=2, seq_len=512)
    two = paceline.predict("gpt2", "2x p3.16xlarge", seq_len=512).samples_per_s
    assert text(resources("p3.16xlarge")) == math.ceil(1e6 / 512 / two)
    with pytest.raises(UserError, match="2 nodes have no network"):
        text(resources(V100=8))
    assert TimeEstimator("llama-3-8b", samples=1)(resources(T4=1)) == math.inf


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (resources(Q100=1), "unknown accelerator 'Q100'; nearest:"),
        (resources(A100=0.5), "0.5 of accelerator A100; no speed of a part of a device is predicted"),
        (resources(), "accelerators none; name one kind"),
        (resources("m5.large"), "accelerators m5.large; name one kind"),
        (resources(A100=1, T4=1), "accelerators A100, T4; name one kind"),
    ],
)
def test_unknown_accelerators_are_said_and_not_guessed(asked: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        machines(asked)


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({}, "0 samples and 0 tokens"),
        ({"samples": 1, "tokens": 1}, "give `samples` or `tokens`"),
        ({"tokens": 9}, "give `samples`"),
    ],
)
def test_illegal_amounts_are_refused(stated: dict[str, float], said: str) -> None:
    with pytest.raises(UserError, match=said):
        TimeEstimator("resnet-50", **stated)


@pytest.mark.long
def test_skypilot_asks_the_estimator_for_its_resources() -> None:
    sky = pytest.importorskip("sky", reason="needs SkyPilot: pip install skypilot")
    estimate = TimeEstimator("resnet-50", samples="1.2M")
    task = sky.Task(run="train").set_time_estimator(estimate)
    assert task.estimate_runtime(sky.Resources(accelerators="T4:4")) == estimate(resources(T4=4))
