"""Latency of files, measured in alternation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.slimming.export.onnx_export import to_onnx
from paceline.slimming.latency.latency import latencies, pinned


@pytest.mark.long
def test_more_work_takes_longer_and_quartiles_are_in_order(tmp_path: Path) -> None:
    inputs = (torch.randn(64, 256),)
    files = {}
    for name, width in (("large", 1024), ("small", 32)):
        model = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, 256))
        files[name] = to_onnx(model, inputs, tmp_path / f"{name}.onnx"), inputs
    found = latencies(files, turns=5)
    assert found["large"].median_s > 2 * found["small"].median_s > 0
    assert all(each.low_s <= each.median_s <= each.high_s and each.turns == 5 for each in found.values())


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a system that pins threads, as Linux does")
@pytest.mark.parametrize("threads", [1, 2, 1000])
def test_threads_are_pinned_while_they_are_timed_and_then_free(threads: int) -> None:
    allowed = os.sched_getaffinity(0)
    with pytest.raises(KeyError), pinned(threads):
        assert len(os.sched_getaffinity(0)) == min(threads, len(allowed)) and os.sched_getaffinity(0) <= allowed
        raise KeyError
    assert os.sched_getaffinity(0) == allowed
