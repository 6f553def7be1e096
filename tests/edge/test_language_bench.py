"""Files of a language model are judged against the budget, and the cheapest form of the whole model is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.edge import language_bench
from paceline.edge.language_bench import LanguageBench, budget_limit, file_bytes
from paceline.edge.language_forms import cheapest_form
from paceline.edge.language_settings import LanguageRun
from paceline.slimming.language.checkpoint import TextParts
from paceline.slimming.latency.latency import Latency
from paceline.slimming.latency.token_times import TokenLatency
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.weight_forms import INT4, INT8


def latency(seconds: float) -> TokenLatency:
    each = Latency(seconds, seconds, seconds, 1)
    return TokenLatency(each, Latency(10 * seconds, 10 * seconds, 10 * seconds, 1), 16, 16)


def bench_of(folder: Path, budget: str) -> LanguageBench:
    whole = folder / "whole.onnx"
    whole.write_bytes(bytes(1000))
    run = LanguageRun(model="m", text="t", out="o", budget=Budget.parse(budget), weights=(INT8, INT4))
    return LanguageBench(run, type("Checkpoint", (), {"vocabulary": 8, "random": True})(), whole)  # type: ignore[arg-type]


def test_the_cheapest_form_counts_unless_it_meets_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for form, size in ((INT8, 300), (INT4, 200)):
        (tmp_path / f"whole.{form.file_name}.onnx").write_bytes(bytes(size))
    seconds = {"whole": 8.0, "control": 8.0, "int8": 5.0, "int4": 6.0}
    found: Any = lambda self, files: {name: latency(seconds[name]) for name in files}  # noqa: E731
    monkeypatch.setattr(language_bench.LanguageBench, "latencies", found)
    for budget, form in (
        ("decode=2x", (INT8, pytest.approx(5 / 8))),
        ("decode=1.5x", None),  # int8 alone meets it
        ("size=150B", (INT4, 0.2)),
        ("size=250B", None),
    ):
        bench, said = bench_of(tmp_path, budget), list[str]()
        forecasts = bench.fewer_bits(TextParts(*3 * [torch.arange(0)]), said.append)
        assert cheapest_form(bench.run.budget, forecasts, file_bytes(bench.whole)) == form and len(said) == 4
    seconds["smaller"] = 2.0
    assert bench_of(tmp_path, "prefill=2x").cost(tmp_path / "whole.int8.onnx", 16.0) == pytest.approx(4.0)
    assert bench_of(tmp_path, "size=150B").cost(tmp_path / "whole.int8.onnx", 16.0) == 300


def test_limits_and_bytes(tmp_path: Path) -> None:
    assert budget_limit(Budget.parse("prefill=2x"), 1.0, latency(3.0)) == 15.0
    assert budget_limit(Budget.parse("decode=5ms"), 5e-3, latency(3.0)) == 5e-3
    file = tmp_path / "a.onnx"
    file.write_bytes(bytes(10))
    (tmp_path / "a.onnx.data").write_bytes(bytes(7))
    assert file_bytes(file) == 17
