"""Figures as CSV."""

from __future__ import annotations

import csv

import pytest

from paceline import planning
from paceline.serve.configurations import Configurations
from paceline.serve.question import question
from paceline.serve.tables import answer_tables, cost_table


def test_the_tables_have_the_numbers_of_the_figures() -> None:
    own = question({"workload": "lenet5", "device": "A100", "devices-per-node": "2"}, Configurations())
    explained = planning.explain(own.workload, own.cluster, own.strategy)
    tables = answer_tables(explained, None)
    rows = {name: list(csv.DictReader(table.csv().splitlines())) for name, table in tables.items()}
    assert max(float(row["end_s"]) for row in rows["step"]) == pytest.approx(explained.prediction.step_time_s, rel=0.01)
    parts = {row["part"]: float(row["bytes"]) for row in rows["memory"]}
    assert parts.pop("available") == explained.available
    assert sum(parts.values()) == pytest.approx(explained.prediction.memory_bytes)
    assert {row["devices"] for row in rows["scaling"]} >= {"1", "2"} and rows["what-if"] == []
    assert cost_table(()).csv() == "strategy,time_s,time_low_s,time_high_s,usd,usd_low,usd_high\n"
