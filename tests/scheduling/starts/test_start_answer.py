"""The answer as JSON and as a metric."""

from __future__ import annotations

import json

from paceline.scheduling.starts.verb import schedule_start
from queues import queue, runs, waits


def test_a_queue_whose_jobs_fit_no_node_is_answered_with_a_remark() -> None:
    answer = schedule_start(queue(waits("big", 64)), futures=8)
    assert answer.jobs == () and [row["name"] for row in answer.to_json()["skipped"]] == ["big"]


def test_json_and_metrics_hold_the_same_starts() -> None:
    answer = schedule_start(queue(runs("r", 8, 10.0, 3600.0), waits('w"1', 8, 3600.0)), futures=8)
    data = json.loads(json.dumps(answer.to_json()))
    row = data["jobs"][0]
    assert 0 < row["start_low_s"] <= row["start_median_s"] <= row["start_high_s"] < row["end_high_s"]
    text = answer.metrics()
    assert f'paceline_job_start_seconds{{job="w\\"1",user="",queue="",quantile="0.5"}} {row["start_median_s"]:.0f}' in text
    assert 'paceline_queue_jobs{state="waiting"} 1' in text and text.endswith("\n")
