"""Latency of other widths, from operations that were timed alone."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from paceline.errors import UserError
from paceline.slimming.latency import Latency
from paceline.slimming.layer_times import REST, LayerTimes
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


@pytest.fixture(scope="module")
def residual_times() -> LayerTimes:
    return LayerTimes(structures_of(Residual(), images()), Latency(1e-3, 9e-4, 1.1e-3, 5), points=2)


def test_another_process_reads_the_same_times(residual_times: LayerTimes) -> None:
    found = structures_of(Residual(), images())
    again = LayerTimes.from_json(json.loads(json.dumps(residual_times.to_json())), found)
    for removed in ([], [each.number for each in found.every[:3]], [each.number for each in found.every[5:]]):
        assert again.by_layer(removed) == residual_times.by_layer(removed)
    assert again.whole == residual_times.whole


def test_times_of_another_network_are_refused(residual_times: LayerTimes) -> None:
    data = residual_times.to_json()
    with pytest.raises(UserError, match="another network"):
        LayerTimes.from_json(data, structures_of(Recurrent(), tokens()))
    with pytest.raises(UserError, match="version 99"):
        LayerTimes.from_json({**data, "version": 99}, structures_of(Residual(), images()))
    with pytest.raises(UserError, match="no times of layers"):
        LayerTimes.from_json({"version": data["version"]}, structures_of(Residual(), images()))


def test_layers_by_name_add_up_to_the_network(residual_times: LayerTimes) -> None:
    by_layer = residual_times.by_layer()
    assert list(by_layer) == ["stem.0", "first", "second", "depthwise", "grouped", "output", REST]
    assert sum(by_layer.values()) == residual_times.seconds() == pytest.approx(1e-3)
