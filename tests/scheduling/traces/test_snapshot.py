"""A queue at one moment: arrays are expanded, and running jobs know since when they run."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.scheduling.traces.snapshot import parse_queue, read_queue

SQUEUE = """JOBID|ST|TIME|TIME_LIMIT|NODES|TRES_PER_NODE|REASON
7|R|1:00|2:00:00|1|gpu:4|None
8_[1-3%2]|PD|0:00|1:00:00|2|gpu:8|Priority
"""


def test_a_queue_is_read_at_the_time_of_its_file_or_at_a_stated_one(tmp_path: Path) -> None:
    path = tmp_path / "q.txt"
    path.write_text(SQUEUE)
    os.utime(path, (1000, 1000))
    for queue, now in ((read_queue(path), 1000), (read_queue(path, 5000), 5000), (parse_queue(SQUEUE, "squeue", 5000), 5000)):
        running, *waiting = queue.jobs
        assert (queue.moment_s, running.start_s, running.run_s, running.devices) == (now, now - 60, 60, 4)
        assert [(job.name, job.array, job.devices, job.limit_s) for job in waiting] == [
            ("8_1", "8", 16, 3600),
            ("8_2", "8", 16, 3600),
            ("8_3", "8", 16, 3600),
        ]
        assert [len(queue.in_state(state)) for state in ("running", "waiting", "ended")] == [1, 3, 0]


def test_times_of_a_wall_clock_are_those_of_this_machine() -> None:
    start = datetime(2026, 11, 1, 8).isoformat()
    text = f"JOBID|ST|START_TIME|SUBMIT_TIME|NODES\n7|R|{start}|{start}|1\n"
    queue = parse_queue(text, "squeue", datetime(2026, 11, 1, 9).timestamp())
    assert queue.clock == "local" and queue.jobs[0].run_s == 3600 and queue.nodes_as_devices


def test_the_queue_itself_may_say_when_it_was_printed(tmp_path: Path) -> None:
    path = tmp_path / "q.txt"
    path.write_text(f"Sun Nov  1 10:00:00 2026\n{SQUEUE.replace('|', ' ')}")
    assert read_queue(path).moment_s == datetime.fromisoformat("2026-11-01T10:00+00:00").timestamp()
    path.write_text("JOBID|ST|START_TIME|TIME|NODES\n7|R|2026-11-01T08:00:00|30:00|1\n")
    assert read_queue(path).moment_s == datetime.fromisoformat("2026-11-01T08:30+00:00").timestamp()


def test_quotas_come_along() -> None:
    items = [
        {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "ClusterQueue",
            "metadata": {"name": "cq"},
            "spec": {
                "cohort": "all",
                "resourceGroups": [
                    {
                        "flavors": [
                            {"name": "a100", "resources": [{"name": "cpu", "nominalQuota": 9}, {"name": "nvidia.com/gpu"}]}
                        ]
                    }
                ],
            },
        },
        {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "LocalQueue",
            "metadata": {"name": "lq", "namespace": "ml"},
            "spec": {"clusterQueue": "cq"},
        },
        {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "Workload",
            "metadata": {"name": "w", "namespace": "ml"},
            "spec": {"queueName": "lq"},
        },
        {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "Workload",
            "metadata": {"name": "x"},
            "spec": {"podSets": [{"count": "many"}]},
        },
    ]
    limits = items[0]["spec"]["resourceGroups"][0]["flavors"][0]["resources"][1]  # type: ignore[index]
    limits.update(nominalQuota="16", borrowingLimit=8)
    queue = parse_queue(json.dumps({"kind": "List", "items": items}), "kubectl", 0.0)
    assert queue.queues is not None
    stated, quota = queue.queues.queues["cq"], queue.queues.queues["cq"].quotas["a100"]
    assert (stated.cohort, quota.nominal, quota.borrowing_limit, quota.lending_limit) == ("all", 16, 8, None)
    assert queue.queues.local_queues["ml/lq"] == "cq"
    assert queue.jobs[0].account == "cq" and [row.name for row in queue.skipped] == ["x"]


def test_an_empty_queue_has_no_job_and_another_file_is_refused() -> None:
    for text, form in (
        ("JOBID|ST|TIME|NODES\n", "squeue"),
        ('{"jobs": [], "meta": {}}', "squeue_json"),
        ("apiVersion: v1\nitems: []\nkind: List\n", "kueue"),
        ("[]", "ray"),
    ):
        assert parse_queue(text, "q", 0.0).jobs == () and parse_queue(text, "q", 0.0).form == form
    with pytest.raises(UserError, match="mine is no log of a cluster"):
        parse_queue("name,arrival_s,duration_s\na,0,1\n", "mine", 0.0)


def test_the_projected_end_of_a_running_job_is_not_what_it_has_run(tmp_path: Path) -> None:
    job = {"job_id": 1, "job_state": ["RUNNING"], "submit_time": 1000, "start_time": 1000, "end_time": 8200, "time_limit": 120}
    path = tmp_path / "q.json"
    path.write_text(json.dumps({"jobs": [{**job, "tres_req_str": "gres/gpu=4"}], "last_update": 4600}))
    queue = read_queue(path)
    assert (queue.moment_s, queue.jobs[0].run_s, queue.jobs[0].limit_s) == (4600, 3600, 7200)


def test_what_slurm_says_without_plain_columns() -> None:
    """Time left and limit give the run time; a cut-off type is no device; a later flag says that a job completes."""
    rows = ["1|R|2:00:00|4:00:00|gres/gpu:8", "2|PD|INVALID|1:00:00|gres/gpu:8", "3|R|1:00|2:00|gres/gpu:a10+"]
    log = parse_queue("\n".join(["JOBID|ST|TIME_LEFT|TIME_LIMIT|TRES_PER_NODE", *rows]), "q", 1e9)
    assert [(job.name, job.devices) for job in log.jobs] == [("1", 8), ("2", 8)] and log.jobs[0].run_s == 7200.0
    assert [row.detail for row in log.skipped] == ["it runs, and its devices count as free"]
    job = {
        "job_id": 1,
        "job_state": ["RUNNING", "COMPLETING"],
        "submit_time": 1,
        "start_time": 2,
        "tres_per_node": "gres/gpu:1",
    }
    assert parse_queue(json.dumps({"jobs": [job]}), "q", 1e9).jobs[0].status == "COMPLETING"
    assert parse_queue(json.dumps({"jobs": [], "last_update": {"set": True, "number": 7}}), "q", 1e9).in_state("running") == ()
    requeued = (
        "JobID|Submit|Start|End|State|AllocTRES|Timelimit\n1|1|2|9|REQUEUED|gres/gpu=8|Partition_+\n2|1|0|0|REQUEUED|x|1\n"
    )
    assert [(job.state, job.run_s) for job in parse_queue(requeued, "q", 1e9).jobs[:1]] == [("ended", 7.0)]
