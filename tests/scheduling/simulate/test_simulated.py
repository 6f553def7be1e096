"""What the verb answers: figures, rows, JSON."""

from __future__ import annotations

import json

from schedule_toys import simulated


def test_rows_and_json() -> None:
    one = simulated()
    rows = one.rows()
    assert [(row["name"], row["start_s"], row["end_s"], row["jct_s"]) for row in rows] == [
        ("a", 0, 100, 100),
        ("b", 100, 150, 140),
        ("c", 100, 200, 180),
    ]
    data = json.loads(json.dumps(one.to_json()))
    assert data["metrics"]["mean_jct_s"] == 140 and data["policy"] == "fifo" and len(data["jobs"]) == 3
    assert "<table>" in one._repr_html_()
