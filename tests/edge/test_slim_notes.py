"""Sentences of a slimmed network's record."""

from __future__ import annotations

from dataclasses import replace

from paceline.edge.slim_notes import int8_notes, missed_note, replacement_notes
from paceline.slim_record import SlimMeasurement
from paceline.slimming.methods.budget import Budget
from paceline.slimming.slim_plan import SlimPlan


def test_replacements_are_said() -> None:
    plan = SlimPlan({}, {}, {}, {"conv1": {"kind": "low_rank", "form": "svd", "ranks": [8]}})
    assert list(replacement_notes(plan)) == ["conv1 is low rank now: form svd, ranks [8]."]


def test_where_int_8_is_worse_it_is_said() -> None:
    fp32 = SlimMeasurement(1e-3, 1e-3, 1e-3, 10, 40, 0.9, 0.3)
    assert not list(int8_notes(fp32, None)) and not list(int8_notes(fp32, replace(fp32, latency_s=5e-4)))
    worse = replace(fp32, latency_s=2e-3, accuracy=0.885)
    assert list(int8_notes(fp32, worse)) == [
        "int8 is not faster here: 2.00 ms, 1.00 ms in fp32.",
        "int8 loses 1.50 points of accuracy.",
    ]


def test_a_missed_budget_says_what_to_give() -> None:
    assert "takes longer than predicted" in missed_note(Budget.parse("decode=2x"))
    assert "is larger than predicted" in missed_note(Budget.parse("size=1MB"))
