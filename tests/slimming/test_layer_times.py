"""Latency of other widths, from operations that were timed alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.slimming.latency import Latency
from paceline.slimming.layer_times import LayerTimes
from paceline.slimming.tracing import structures_of
from slimming_networks import Recurrent, Residual, images, tokens


def wide() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)), (torch.randn(512, 64),)


def test_all_structures_take_what_the_whole_network_took_and_fewer_take_less() -> None:
    model, inputs = wide()
    found = structures_of(model, inputs)
    times = LayerTimes(found, Latency(1.0, 0.9, 1.1, 5), points=3)
    numbers = [each.number for each in found.every]
    assert times.seconds() == pytest.approx(1.0)
    half, quarter = times.seconds(numbers[:128]), times.seconds(numbers[:192])
    assert quarter < half < 1.0
    assert half == pytest.approx(0.5, rel=0.02), "a second is far more than its operations: the rest is put down to weights"


@pytest.mark.parametrize("make", ["convolutions", "lstm", "gru"])
def test_every_kind_of_operation_is_timed(make: str) -> None:
    model = {"convolutions": Residual(), "lstm": Recurrent(), "gru": Recurrent(nn.GRU, bidirectional=True)}[make]
    found = structures_of(model, images() if make == "convolutions" else tokens())
    times = LayerTimes(found, Latency(0.0, 0.0, 0.0, 5), points=2)
    first = next(iter(found.layers().values()))
    assert 0 < times.seconds([each.number for each in first[: len(first) // 2]]) < 0.1
