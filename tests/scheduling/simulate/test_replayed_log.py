"""A replayed log counts the rows that became no job, and keeps the waits of its jobs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import paceline
from paceline.scheduling.simulate.replayed_log import WaitFigures
from paceline.scheduling.simulate.saved import from_json, to_json

DAY = "2026-11-01T"
LOG = f"""JobID|Submit|Start|End|State|AllocTRES
1|{DAY}08:00:00|{DAY}08:00:10|{DAY}09:00:10|COMPLETED|gres/gpu=4
2|{DAY}08:00:00|{DAY}09:30:00|{DAY}10:30:00|COMPLETED|gres/gpu:t4=4
3|{DAY}08:00:00|{DAY}09:30:00|{DAY}10:30:00|COMPLETED|gres/gpu:a100=4
4|{DAY}08:00:00|{DAY}09:30:00|{DAY}10:30:00|COMPLETED|gres/gpu=64
5|soon|{DAY}09:30:00|{DAY}10:30:00|COMPLETED|gres/gpu=4
6|{DAY}08:00:00|Unknown|Unknown|PENDING|
"""


def test_a_log_is_replayed_beside_its_own_scheduler(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(LOG)
    simulated = paceline.schedule(path, "1x4xT4", "fifo", drop_too_large=True)
    log = simulated.log
    assert log is not None and (log.file, log.form, log.rows) == ("log.txt", "sacct", 6)
    assert [(row.name, row.reason) for row in log.skipped] == [
        ("3", "ran on a100, which the cluster lacks"),
        ("4", "asked for more devices than the cluster has of one type"),
        ("5", "had a wrong time"),
        ("6", "never started"),
    ]
    assert log.waits == {"1": 10, "2": 5400}
    logged, own = log.both_waits(simulated.schedule.outcomes)
    assert (logged.jobs, logged.mean_s, logged.median_s, logged.p90_s) == (2, 2705, 2705, 4861)
    assert own.jobs == 2 and 0 <= own.mean_s - 1800 <= 60
    data = simulated.to_json(with_skipped=True)
    assert (
        data["log"]["jobs"] == 2 and len(data["log"]["skipped_rows"]) == 4 and "skipped_rows" not in simulated.to_json()["log"]
    )
    assert [row["log_wait_s"] for row in data["jobs"]] == [10, 5400]
    assert from_json(json.loads(json.dumps(to_json({"fifo": simulated}))))["fifo"].log == log
    assert len(paceline.schedule(path, "1x4xT4", "fifo", drop_too_large=True, any_type=True).rows()) == 3


def test_a_file_that_is_no_log_has_none(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("name,arrival_s,duration_s,device_types\na,0,60,t4\n")
    simulated = paceline.schedule(path, "1x4xT4", "fifo")
    assert simulated.log is None and "log" not in simulated.to_json() and math.isnan(WaitFigures.of([]).mean_s)
    assert simulated.schedule.outcomes[0].job.device_types == ("T4",)
    with pytest.raises(paceline.UserError, match="'a' runs on t4"):
        paceline.schedule(path, "1x4xA100", "fifo")
