"""A record comes back from JSON as it went."""

from __future__ import annotations

import json
from dataclasses import replace

from paceline.record import Event, RunRecord, environment

RECORD = RunRecord(
    workload="lenet5",
    strategy={"world_size": 2, "compression": "terngrad"},
    step_time_s=0.01,
    low_s=0.009,
    high_s=0.012,
    samples_per_s=6400.0,
    compute_s=0.008,
    comm_s=0.001,
    codec_s=0.002,
    exposed_comm_s=0.002,
    wire_bytes_per_device=1234,
    compression_ratio=9.5,
    memory_bytes=1e6,
    bottleneck="compute",
    assumptions=("one", "two"),
    accuracy=0.97,
    epochs=2,
    seed=1,
    steps=100,
    nonfinite_steps=0,
    curve=({"epoch": 1.0, "loss": 0.5, "accuracy": 0.9, "seconds": 3.0},),
    environment={"cpu": "toy"},
)


def test_records_round_trip_through_a_file(tmp_path):
    path = tmp_path / "runs.jsonl"
    second = replace(RECORD, seed=2)
    RECORD.append(path)
    second.append(path)
    first, last = (RunRecord.from_json(json.loads(line)) for line in path.read_text().splitlines())
    assert first == RECORD
    assert last == second


def test_the_timeline_stays_out_and_later_keys_are_ignored():
    data = replace(RECORD, timeline=(Event(name="forward", lane="compute", start_s=0.0, duration_s=1.0),)).to_json()
    assert "timeline" not in data
    assert data["schema"] == 1
    assert RunRecord.from_json({**data, "from_the_future": 1}).timeline == ()


def test_an_event_ends():
    assert Event(name="push", lane="network", start_s=1.0, duration_s=0.5).end_s == 1.5


def test_the_environment_says_what_is_absent():
    where = environment(("numpy", "no-such-package"))
    assert where["no-such-package"] == "absent"
    assert {"date", "commit", "cpu", "cores", "python", "numpy"} <= set(where)
