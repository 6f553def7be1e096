"""Fewer bits of a whole language model are judged before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from paceline.edge.language_forms import cheapest_form, form_forecasts, forms_said
from paceline.slimming.latency.latency import Latency
from paceline.slimming.latency.token_times import TokenLatency
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.weight_forms import INT4, INT8

SECONDS = {"whole": 4e-3, "control": 4e-3, str(INT8): 1.8e-3, str(INT4): 2.1e-3}


def timed(files: Mapping[str, Path]) -> dict[str, TokenLatency]:
    found = {name: Latency(SECONDS[name], SECONDS[name], SECONDS[name], 3) for name in files}
    return {name: TokenLatency(each, each, 128, 128) for name, each in found.items()}


def test_the_forms_that_meet_a_budget_alone_are_said_and_only_a_missed_one_asks_for_a_smaller_model() -> None:
    files = {INT8: (Path("a"), 13), INT4: (Path("b"), 6)}
    for budget, says, form in (
        ("decode=2x", "int8 alone meets decode=2x: training a smaller model is needed only beyond that", None),
        ("decode=2.25x", "int8 alone may meet decode=2.25x", (INT8, 0.45)),
        ("prefill=3x", "no form alone meets prefill=3x", (INT8, 0.45)),
        ("decode=1.9ms", "int8 alone meets decode=1.90ms", None),
        ("size=10B", "int4 alone meets size=10.0B", None),
        ("size=5B", "no form alone meets size=5.00B", (INT4, 6 / 42)),
    ):
        given = Budget.parse(budget)
        found = form_forecasts(given, Path("whole"), files, timed)
        lines = list(forms_said(given, found, {INT8: 0.001}))
        assert says in lines[-1]
        assert cheapest_form(given, found, 42) == (form and (form[0], pytest.approx(form[1])))
        assert "int8: 2.22x per" in lines[0] and lines[0].endswith("13.0 B, perplexity +0.1 %")
        assert "perplexity" not in lines[1]
    assert form_forecasts(given, Path("whole"), {}, timed) == () and cheapest_form(given, (), 42) is None
