"""Chains of layers as ONNX models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.slimming.export.onnx_export import open_session
from paceline.slimming.latency.low_rank_times import chain_seconds, onnx_chain
from paceline.slimming.methods.low_rank import split


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(6, 8, (3, 5), stride=(2, 1), padding=(1, 2), dilation=(1, 2)), (2, 6, 9, 12)),
        (nn.Conv2d(6, 8, 3, padding="same", bias=False), (1, 6, 7, 7)),
        (nn.Conv1d(4, 6, 3, padding="valid"), (2, 4, 9)),
        (nn.Linear(6, 5), (4, 6)),
    ],
)
def test_a_chain_computes_what_its_layers_do(layer: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    for layers in ([layer], list(split(layer, {"ranks": [3]}).children())):
        (found,) = open_session(onnx_chain(layers, shape)).run(None, {"x0": x.numpy()})
        assert torch.allclose(torch.from_numpy(found), nn.Sequential(*layers)(x), atol=1e-5)


def test_far_fewer_products_take_less_time() -> None:
    layer = nn.Conv2d(64, 128, 5, padding=2)
    times = chain_seconds({"whole": [layer], "thin": list(split(layer, {"ranks": [8]}).children())}, (1, 64, 32, 32))
    assert 0 < times["thin"] < times["whole"]
    assert set(chain_seconds({1: [nn.Linear(4, 8)]}, (2, 3, 4))) == {1}, "any dimensions before the last"
