"""Quantities of a run that follow from others."""

from __future__ import annotations

import pytest

from paceline.calibration.imports.run_measurement import RunFact, RunMeasurement
from paceline.calibration.imports.step_times import MeasuredSteps


def run(rates: dict[str, float] | None = None, **facts: object) -> RunMeasurement:
    steps = MeasuredSteps(source="a log", step_s=(9.0, 2.0, 2.0, 2.0))
    return RunMeasurement(
        file="a",
        kind="a log",
        steps=steps,
        rates=rates or {},
        facts={name: RunFact(str(value)) for name, value in facts.items()},
    )


@pytest.mark.parametrize(
    ("measured", "tokens", "samples"),
    [
        (run(global_batch=16, seq_len=1024), 8192.0, 8.0),
        (run(tokens_per_step=4096), 2048.0, None),
        (run(device_tokens_per_step=4096, world_size=4), 8192.0, None),
        (run({"tokens_per_s": 5.0, "samples_per_s": 7.0}), 5.0, 7.0),
        (run({"device_tokens_per_s": 5.0}, world_size=2), 10.0, None),
        (run(), None, None),
    ],
)
def test_rates(measured: RunMeasurement, tokens: float | None, samples: float | None) -> None:
    assert (measured.tokens_per_s, measured.samples_per_s) == (tokens, samples)


def test_one_line_says_what_was_taken() -> None:
    assert run(global_batch=16, device="A100").took() == (
        "a log; 3 step times (1 at the start left out), median 2.00 s (half between 2.00 s and 2.00 s);"
        " not stated: length, number of devices, precision"
    )
    assert str(RunFact("16", "line 3", "batch 16")) == "line 3: batch 16" and str(RunFact("16")) == ""
