"""Forecast of fewer bits before any training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.edge.kept_budget import limit
from paceline.edge.weights_forecast import ROUNDS, WeightsForecast, ratio_range, weights_forecasts, whole_form_note
from paceline.slimming.latency.latency import Latency
from paceline.slimming.latency.targets import OnnxRuntime
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.weight_forms import INT4, INT8, INT8_BLOCKS, WeightForm
from paceline.slimming.slim import Slim


@pytest.mark.parametrize(
    ("ratio", "budget", "meets", "says"),
    [
        (0.4, Budget("speedup", 2.5), True, "2.50x as fast as fp32 (2.27x to 2.78x) here, timed in turns before any training"),
        (
            0.4,
            Budget("speedup", 2.5),
            True,
            "it may meet speedup=2.5x alone, within that range, nothing removed; `--weights int8`",
        ),
        (0.3, Budget("speedup", 2.5), True, "it meets speedup=2.5x alone"),
        (
            0.45,
            Budget("speedup", 2.5),
            False,
            "2.22x as fast as fp32 (2.02x to 2.47x) here, timed in turns before any training.",
        ),
        (
            0.4,
            Budget("latency", 1e-3),
            True,
            "it meets latency=1.00ms alone, nothing removed; `--weights int8` writes whole.int8.onnx",
        ),
        (0.5, Budget("latency", 0.89e-3), False, "2.00x as fast as fp32"),
        (1.32, Budget("size", 3e3), True, "slower than fp32, 1.32 times its latency here"),
        (1.32, Budget("size", 2e3), False, "slower than fp32"),
        (0.99, Budget("accuracy", 1.0), False, "is as fast as fp32"),
        (0.0, Budget("speedup", 2.0), False, "has no int8 file: why."),
    ],
)
def test_what_fewer_bits_alone_meet_is_said(ratio: float, budget: Budget, meets: bool, says: str) -> None:
    found = WeightsForecast(INT8, ratio, 0.9 * ratio, 1.1 * ratio, 2e-3, 2500, 2400, "" if ratio else "why")
    assert found.meets(budget) == meets and says in found.text(budget)
    assert ("`--weights int8`" in found.text(budget)) == meets
    assert ("unknown until then" in found.text(budget)) == meets
    if ratio:
        assert "loses 1.50 points of accuracy" in found.judged(0.965, 0.98).text(budget)


def test_the_range_has_every_round_and_the_error_of_the_control() -> None:
    rounds = [
        {
            name: Latency(each, 0, 0, 1)
            for name, each in (("whole", clock), ("control", clock * control), ("int8", clock * ratio))
        }
        for clock, control, ratio in ((1.0, 1.0, 0.5), (2.0, 0.9, 0.6), (1.5, 1.02, 0.55))
    ]
    assert ratio_range(rounds, "int8") == pytest.approx((0.55, 0.5 * 0.9, 0.6 * 1.1))


@pytest.mark.parametrize(
    ("budget", "ratio", "eased"),
    [
        (Budget("speedup", 4.0), 0.5, Budget("speedup", 2.0)),
        (Budget("latency", 0.5e-3), 0.5, Budget("speedup", 2.0)),
        (Budget("speedup", 4.0), 0.2, None),
        (Budget("speedup", 4.0), 0.99, None),
        (Budget("size", 1000.0), 1.5, Budget("size", 4000.0)),
        (Budget("size", 2600.0), 0.5, None),
        (Budget("accuracy", 1.0), 0.5, None),
    ],
)
def test_a_wider_network_meets_the_budget_together_with_fewer_bits(budget: Budget, ratio: float, eased: Budget | None) -> None:
    """Its latency or size times that of the form is the budget."""
    found = WeightsForecast(INT4, ratio, latency_s=2e-3, file_bytes=2500)
    assert found.eased(budget, 10_000.0 if budget.kind == "size" else 2e-3) == eased


@pytest.mark.long
def test_the_whole_network_is_timed_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of the test's own: int8 takes 0.4 of the time; the file is a quarter of fp32's weights and more."""

    def latencies(self: OnnxRuntime, files: dict[str, Any], threads: int = 1, turns: int | None = None) -> dict[str, Latency]:
        assert list(files)[:2] == ["whole", "control"] and all(Path(file).is_file() for file, _ in files.values())
        calls.append(list(files)[2:])
        return {name: Latency(2e-3 if name in ("whole", "control") else 8e-4, 0, 0, 1) for name in files}

    calls: list[list[str]] = []
    monkeypatch.setattr(OnnxRuntime, "latencies", latencies)
    slim = Slim(nn.Linear(256, 512), (torch.randn(1, 256),))
    eight, four = weights_forecasts(slim)
    assert (eight.form, four.form) == (INT8, INT4) and calls == [["int8", "int4"]] * ROUNDS
    assert (
        eight.ratio == 0.4
        and eight.low == pytest.approx(0.388)
        and eight.latency_s == 2e-3
        and 131e3 < eight.file_bytes < 300e3
    )
    assert 65e3 < four.file_bytes < 0.6 * eight.file_bytes and four.predicted_bytes == pytest.approx(four.file_bytes, rel=0.02)
    given = (INT8_BLOCKS, WeightForm.parse("int4:block=32"))
    assert [each.form for each in weights_forecasts(slim, given)] == list(given)
    (none,) = weights_forecasts(Slim(nn.LayerNorm(8), (torch.randn(1, 8),)))
    assert not none.ratio and "no operation that ONNX Runtime quantises" in none.text(Budget("speedup", 2.0))


def test_the_whole_network_in_a_form_meets_or_misses_the_budget_on_the_present_clock() -> None:
    note = whole_form_note(INT8, Budget("latency", 80e-6), 200e-6, 0.5, 41e-6, 0.9)
    assert note == "The whole network in int8 takes 41.0 µs, which misses latency=80.0µs: accuracy 90.00 %, whole.int8.onnx."
    assert "which meets speedup=4x" in whole_form_note(INT4, Budget("speedup", 4.0), 200e-6, 0.5, 50e-6, 0.9)
    assert "takes 50.0 µs: accuracy" in whole_form_note(INT4, Budget("size", 4.0), 200e-6, 0.5, 50e-6, 0.9)
    assert limit(Budget("latency", 80e-6), 1.0, 0.5) == 40e-6 and limit(Budget("accuracy", 1.0), 1.0, 0.5) is None
