"""Forecast of int8 before any training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.edge.int8_forecast import Int8Forecast, int8_forecast, whole_int8_note
from paceline.edge.kept_budget import limit
from paceline.slimming.latency.latency import Latency
from paceline.slimming.latency.targets import OnnxRuntime
from paceline.slimming.methods.budget import Budget
from paceline.slimming.slim import Slim


@pytest.mark.parametrize(
    ("ratio", "budget", "meets", "says"),
    [
        (
            0.4,
            Budget("speedup", 2.5),
            True,
            "2.50x as fast as fp32 here, timed in turns before any training: it may meet speedup=2.5x",
        ),
        (0.3, Budget("speedup", 2.5), True, "it meets speedup=2.5x alone"),
        (0.41, Budget("speedup", 2.5), False, "2.44x as fast as fp32 here, timed in turns before any training."),
        (
            0.5,
            Budget("latency", 1e-3),
            True,
            "it may meet latency=1.00ms alone, as measured once, nothing removed; `--int8` writes whole.int8.onnx",
        ),
        (0.5, Budget("latency", 0.99e-3), False, "2.00x as fast as fp32"),
        (1.32, Budget("size", 3e3), True, "slower than fp32, 1.32 times its latency here"),
        (1.32, Budget("size", 2e3), False, "slower than fp32"),
        (0.99, Budget("accuracy", 1.0), False, "is as fast as fp32 here"),
        (0.0, Budget("speedup", 2.0), False, "has no int8 file: why."),
    ],
)
def test_what_int8_alone_meets_is_said(ratio: float, budget: Budget, meets: bool, says: str) -> None:
    found = Int8Forecast(ratio, 2e-3, 2500, "" if ratio else "why")
    assert found.meets(budget) == meets and says in found.text(budget)
    assert ("`--int8`" in found.text(budget)) == meets


@pytest.mark.long
def test_the_whole_network_is_timed_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of the test's own: int8 takes 0.4 of the time; the file is a quarter of fp32's weights and more."""

    def latencies(self: OnnxRuntime, files: dict[str, Any], threads: int = 1, turns: int | None = None) -> dict[str, Latency]:
        assert list(files) == ["whole", "int8"] and all(Path(file).is_file() for file, _ in files.values())
        return {"whole": Latency(2e-3, 0, 0, 1), "int8": Latency(8e-4, 0, 0, 1)}

    monkeypatch.setattr(OnnxRuntime, "latencies", latencies)
    found = int8_forecast(Slim(nn.Linear(256, 512), (torch.randn(1, 256),)))
    assert found is not None and found.ratio == 0.4 and found.latency_s == 2e-3 and 131e3 < found.file_bytes < 300e3
    none = int8_forecast(Slim(nn.LayerNorm(8), (torch.randn(1, 8),)))
    assert (
        none is not None and not none.ratio and "no operation that ONNX Runtime quantises" in none.text(Budget("speedup", 2.0))
    )


def test_the_whole_network_in_int8_meets_or_misses_the_budget_on_the_present_clock() -> None:
    note = whole_int8_note(Budget("latency", 80e-6), 200e-6, 0.5, 41e-6, 0.9)
    assert note == "The whole network in int8 takes 41.0 µs, which misses latency=80.0µs: accuracy 90.00 %, whole.int8.onnx."
    assert "which meets speedup=4x" in whole_int8_note(Budget("speedup", 4.0), 200e-6, 0.5, 50e-6, 0.9)
    assert "takes 50.0 µs: accuracy" in whole_int8_note(Budget("size", 4.0), 200e-6, 0.5, 50e-6, 0.9)
    assert limit(Budget("latency", 80e-6), 1.0, 0.5) == 40e-6 and limit(Budget("accuracy", 1.0), 1.0, 0.5) is None
