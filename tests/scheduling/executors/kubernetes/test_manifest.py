"""Manifests, and the script of a pod, which runs here as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from live_jobs import script as command
from live_jobs import training
from paceline.scheduling.executors.kubernetes.manifest import devices_per_pod, job_manifest, script
from paceline.scheduling.executors.kubernetes.settings import KubernetesSettings


def manifest(base: Path, **more: Any) -> dict[str, Any]:
    settings = KubernetesSettings(image="i", claim="runs", mount=str(base), **more)
    return job_manifest(training(base, grace_s=12.5), 2, 4, settings, name="job-1", schedule="s", selector={"gpu": "a100"})


def test_a_job_is_elastic_suspended_for_its_queue_and_ends_with_grace(tmp_path: Path) -> None:
    plain, queued = manifest(tmp_path), manifest(tmp_path, queue="team")
    assert not plain["spec"]["suspend"] and queued["spec"]["suspend"]
    assert queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert queued["metadata"]["annotations"] == {"kueue.x-k8s.io/elastic-job": "true"}
    spec = plain["spec"]["template"]["spec"]
    assert (plain["spec"]["parallelism"], plain["spec"]["completions"]) == (2, 2)
    assert spec["terminationGracePeriodSeconds"] == 13 and spec["nodeSelector"] == {"gpu": "a100"}
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert "tolerations" not in manifest(tmp_path, resource="cpu")["spec"]["template"]["spec"]
    assert [devices_per_pod(p) for p in ({"a": 8, "b": 8}, {"a": 8, "b": 4}, {"a": 3, "b": 2})] == [8, 4, 1]


class Pod:
    """A script that runs."""

    def __init__(self, base: Path, text: str, shell: str = "sh") -> None:
        self.info = base / "info"
        self.info.mkdir(exist_ok=True)
        self.start("1 1")
        environment = {**os.environ, "PACELINE_POD_INFO": str(self.info), "MASTER_ADDR": "here", "JOB_COMPLETION_INDEX": "0"}
        self.process = subprocess.Popen([shell, "-c", text], env=environment, stdout=subprocess.PIPE, text=True)

    def start(self, words: str) -> None:
        (self.info / "new").write_text(words)
        (self.info / "new").replace(self.info / "start")

    def ends(self) -> tuple[int, str]:
        said, _ = self.process.communicate(timeout=200)
        return self.process.returncode, said


def until(path: Path) -> None:
    ends_at = time.monotonic() + 100
    while not path.exists():
        assert time.monotonic() < ends_at, path
        time.sleep(0.02)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_pod_forwards_the_request_to_end_and_prints_reports(tmp_path: Path, shell: str) -> None:
    (tmp_path / "job").mkdir()
    text = 'echo \'{"step": 3}\' > job/progress.json; trap "exit 7" USR1; touch ready; while :; do sleep 0.1; done'
    pod = Pod(tmp_path, script(command(tmp_path, text, directory=str(tmp_path), signal="USR1"), 2), shell)
    until(tmp_path / "ready")
    pod.process.send_signal(signal.SIGTERM)
    assert pod.ends() == (7, 'paceline-progress {"step": 3}\n')


@pytest.mark.long
def test_a_pod_starts_its_command_again_at_a_new_size(tmp_path: Path) -> None:
    runner = tmp_path / "bin" / "torchrun"
    runner.parent.mkdir()
    runner.write_text(
        '#!/bin/sh\necho "$PACELINE_NODES $PACELINE_DEVICES $MASTER_PORT $*"\n'
        '[ "$2" = 1 ] && { touch ready; exec sleep 60; }\nexit 0\n'
    )
    runner.chmod(0o755)
    job = training(tmp_path, directory=str(tmp_path), environment={})
    pod = Pod(tmp_path, f"PATH={runner.parent}:$PATH\n{script(job, 4)}")
    until(tmp_path / "ready")
    pod.start("2 2")
    code, said = pod.ends()
    first, second = said.splitlines()
    assert code == 0 and first.startswith("1 4 29501 --nnodes 1 --node-rank 0 --master-addr here --master-port 29501")
    assert second.startswith("2 8 29502 --nnodes 2 ") and "--nproc-per-node 4 -m paceline.training --model lenet5" in second
