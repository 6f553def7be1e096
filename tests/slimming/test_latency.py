"""Latency of files, measured in alternation."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from paceline.slimming.latency import latencies
from paceline.slimming.onnx_export import to_onnx


def test_more_work_takes_longer_and_quartiles_are_in_order(tmp_path: Path) -> None:
    inputs = (torch.randn(64, 256),)
    files = {}
    for name, width in (("large", 1024), ("small", 32)):
        model = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, 256))
        files[name] = to_onnx(model, inputs, tmp_path / f"{name}.onnx"), inputs
    found = latencies(files, turns=5)
    assert found["large"].median_s > 2 * found["small"].median_s > 0
    assert all(each.low_s <= each.median_s <= each.high_s and each.turns == 5 for each in found.values())
