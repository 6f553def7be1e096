"""Records of slimmed language models for tests."""

from __future__ import annotations

from typing import Any

from paceline.language_record import LanguageMeasurement, LanguageRecord


def row(name: str, weights: str, decode_ms: float, perplexity: float) -> LanguageMeasurement:
    """Return a measurement; it meets a budget of 2 ms."""
    seconds, size = decode_ms / 1e3, round(1e6 * decode_ms)
    bits, parameters = {"fp32": 32, "int8": 8}[weights], {"smaller": 600}.get(name, 1000)
    times = (seconds, seconds, seconds, seconds)
    return LanguageMeasurement(name, weights, bits, *times, perplexity, parameters, size, seconds <= 2e-3)


def record(**changes: Any) -> LanguageRecord:
    """Return a record of four rows, of which three meet the budget."""
    rows = (
        row("whole", "fp32", 4.0, 10.0),
        row("whole", "int8", 2.0, 10.1),
        row("smaller", "fp32", 2.0, 10.2),
        row("smaller", "int8", 1.0, 10.3),
    )
    values: dict[str, Any] = {
        "model": "decoder",
        "budget": "decode=2x",
        "goal": 2e-3,
        "context": 128,
        "prompt": 128,
        "threads": 1,
        "rows": rows,
        "layers": (0, 1, 3),
        "whole_layers": 4,
        "widths": {"model.layers.0.mlp.gate_proj": (64, 32)},
        "importance": "wanda",
        "before": 30.0,
        "predicted": 2e-3,
        "trained": {"tokens": 1000, "distill": 0.5, "cpu_s": 1.0},
        "random": False,
    }
    return LanguageRecord(**(values | changes))
