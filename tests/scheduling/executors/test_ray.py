"""Jobs on a local Ray cluster of devices that do not exist."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from live_jobs import script, until
from paceline.errors import UserError
from paceline.scheduling.executors.ray import RayExecutor

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'paceline[ray]'")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of two GPUs each, which are only numbers to Ray."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 2})
    made.add_node(num_cpus=1, num_gpus=2)
    ray.init(address=made.address, namespace="paceline", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def test_jobs_wait_run_move_and_stop(cluster: Any, tmp_path: Path) -> None:
    executor = RayExecutor(tmp_path / "jobs")
    nodes = executor.nodes()
    assert [devices for _, devices in nodes] == [2, 2]
    (first, _), (second, _) = nodes
    text = 'echo "$CUDA_VISIBLE_DEVICES" >> "$0"; trap "exit 0" USR1; while :; do sleep 0.05; done'
    job = script(tmp_path, text, signal="USR1", min_devices=2, max_devices=2)
    job = type(job)(**{**job.to_json(), "command": (*job.command, str(tmp_path / "runs"))})
    executor.submit(job, {first: 2})
    until(executor, "job", lambda seen: seen.phase == "running" and (tmp_path / "runs").exists())
    other = script(tmp_path, "exit 3", "other")
    executor.submit(other, {first: 1})
    assert executor.poll()["other"].phase == "waiting"
    again = RayExecutor(tmp_path / "jobs")  # after a crash of the first
    again.submit(job, {second: 2})
    assert again.poll()["job"].placement == {first: 2}
    again.resize("job", {second: 2})
    until(again, "job", lambda seen: seen.phase == "running" and seen.placement == {second: 2})
    until(again, "job", lambda seen: len((tmp_path / "runs").read_text().splitlines()) == 2)
    assert until(again, "other", "failed").code == 3
    again.stop("job", 60.0)
    assert until(again, "job", "stopped").code == 0
    assert [len(line.split(",")) for line in (tmp_path / "runs").read_text().splitlines()] == [2, 2]


def test_a_report_of_another_run_ends_no_job(cluster: Any, tmp_path: Path) -> None:
    from live_jobs import training

    executor = RayExecutor(tmp_path / "jobs")
    (first, _), _ = executor.nodes()
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "progress.json").write_text('{"epoch": 6, "step": 60}')
    executor.submit(training(tmp_path, directory=str(tmp_path / "gone")), {first: 1})
    seen = until(executor, "job", lambda seen: not seen.holds_devices)
    assert (seen.phase, seen.progress) == ("failed", {})


def test_what_torchrun_cannot_do_is_refused(cluster: Any, tmp_path: Path) -> None:
    from live_jobs import training

    executor = RayExecutor(tmp_path / "jobs")
    (first, _), (second, _) = executor.nodes()
    job = training(tmp_path, command=("paceline", "train", "--global-batch", "60"), max_devices=3)
    with pytest.raises(UserError, match="gets 2, 1 devices on its nodes; torchrun needs the same number"):
        executor.submit(job, {first: 2, second: 1})
    with pytest.raises(UserError, match="unknown node 'nowhere'"):
        executor.submit(job, {"nowhere": 1})
