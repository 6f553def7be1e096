"""Whole live runs on the fake Kubernetes, whose pods are real processes: the loop, the executor, the pods' script."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="needs Kubernetes: pip install 'paceline[kubernetes]'")

from kubernetes_worlds import REAL_TORCHRUN, TORCHRUN, World, make_world
from live_jobs import training, until
from paceline.cli import main
from paceline.scheduling.executors.executor import Observed
from paceline.scheduling.live.journal import Journal
from paceline.scheduling.live.policy import LiveAdapter
from paceline.scheduling.live.runner import Runner, Snapshot, Targets
from paceline.scheduling.policies.las import las

__all__ = ["make_world"]
Make = Callable[..., World]
EPOCHS = 12


class Grown:
    """``las`` with a queue of 2 device-seconds, and the devices that it leaves go to the elastic job."""

    def __init__(self) -> None:
        self._las = LiveAdapter(partial(las, thresholds_s=(2.0,)), 1.0)

    def __call__(self, state: Snapshot) -> Targets:
        targets = self._las(state)
        placements = {name: dict(place) for name, place in targets.placements.items()}
        left = Counter(dict(state.nodes))
        for place in placements.values():
            left.subtract(place)
        if placements.get("j0"):
            placements["j0"] |= {node: devices for node, devices in left.items() if devices > 0}
        return replace(targets, placements=placements)


def run(world: World, base: Path, faults: Callable[[list[str]], None] | None = None) -> list[str]:
    """Three jobs on two devices under las. Return the events. ``faults``: called during the run with its lines."""
    said: list[str] = []
    with Journal(base / "state" / "state.sqlite") as journal, world.alive():
        began = time.time()
        for number, most in enumerate((2, 1, 1)):
            launch = training(base, f"j{number}", EPOCHS, directory=str(base), max_devices=most, grace_s=5.0)
            journal.add(launch, began + 2.0 * number)
        runner = Runner(world.executor, journal, Grown(), 1.5, say=said.append)
        thread = threading.Thread(target=faults, args=(said,), daemon=True) if faults else None
        if thread is not None:
            thread.start()
        runner.run()
        if thread is not None:
            thread.join()
        return said + [f"{name}: {what}" for _, name, what in journal.events()]


def check_trained(base: Path) -> None:
    """Each job has trained all its epochs, each from the checkpoint of the one before."""
    for number in range(3):
        epochs = [int(line.split()[0]) for line in (base / f"j{number}" / "epochs").read_text().splitlines()]
        assert sorted(set(epochs)) == list(range(1, EPOCHS + 1))
        assert all(after in (before, before + 1) for before, after in pairwise(epochs))


@pytest.mark.long
@pytest.mark.parametrize("queue", ["", "team"])
def test_three_jobs_under_las_with_a_suspend_and_a_resize(make_world: Make, tmp_path: Path, queue: str) -> None:
    world = make_world({"a": 1, "b": 1}, torchrun=TORCHRUN, queue=queue)
    if queue:
        world.queue({"any": 2})
    # None ends before all three were there at once, and j0 not before it has shrunk and grown.
    for job, needs in {"j0": {"j0": "12", "j2": "1"}, "j1": {"j2": "1"}, "j2": {"j0": "1"}}.items():
        (tmp_path / job).mkdir()
        (tmp_path / job / "needs").write_text(json.dumps(needs))
    events = run(world, tmp_path)
    text = "\n".join(events)
    assert all(any(event.startswith(f"j{n}: done") for event in events) for n in range(3)), text
    assert "j0: to run on a:1 b:1" in text and "to wait" in text and "stopped on" in text
    workers = {line.split()[1] for line in (tmp_path / "j0" / "epochs").read_text().splitlines()}
    assert workers == {"1", "2"}  # it has changed its size
    check_trained(tmp_path)


@pytest.mark.long
def test_a_server_that_dies_a_watch_that_expires_and_a_pod_that_is_evicted_lose_no_job(
    make_world: Make, tmp_path: Path
) -> None:
    world = make_world({"a": 1, "b": 1}, torchrun=TORCHRUN)

    # All of j0 is trained only when the faults are over.
    (tmp_path / "j0").mkdir()
    (tmp_path / "j0" / "needs").write_text(json.dumps({"faults": "1"}))

    def running() -> list[dict[str, Any]]:
        return [p for p in world.store.list("pods") if p["status"].get("phase") == "Running"]

    def faults(said: list[str]) -> None:
        while not (tmp_path / "j0" / "epochs").exists():
            time.sleep(0.05)
        world.server.stop()
        while not any("no answer, asked again next round" in line for line in said):
            time.sleep(0.05)
        world.server.start()
        world.store.compact()
        while not running():
            time.sleep(0.05)
        for pod in running()[:1]:
            lost = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "preempted"}
            head = pod["metadata"]
            world.store.patch("pods", head["namespace"], head["name"], {"status": {"conditions": [lost]}}, "status")
            world.store.delete("pods", head["namespace"], head["name"])
        world.store.compact()
        (tmp_path / "faults").mkdir()
        (tmp_path / "faults" / "epochs").write_text("1 1\n")

    events = run(world, tmp_path, faults)
    text = "\n".join(events)
    assert "no answer, asked again next round" in text
    assert all(any(event.startswith(f"j{n}: done") for event in events) for n in range(3)), text
    check_trained(tmp_path)


@pytest.mark.long
def test_the_command_runs_jobs_on_a_queue(make_world: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world({"a": 2, "b": 2}, torchrun=TORCHRUN)
    world.queue({"any": 3})
    for name in "ab":
        product = {"metadata": {"labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}}}
        world.store.patch("nodes", "", name, product)
    train = f"paceline train --model lenet5 --data digits --epochs {EPOCHS}"
    (tmp_path / "jobs.toml").write_text(
        f'[[job]]\nname = "first"\ncommand = "{train}"\nmin_devices = 2\nmax_devices = 2\ndevice_types = ["A100"]\n'
        f'[[job]]\nname = "second"\ncommand = "{train}"\narrival = "1s"\n'
        '[[job]]\nname = "theirs"\ncommand = "sh -c \'echo $PACELINE_DEVICES > theirs.txt\'"\ndevices = 1\narrival = "2s"\n'
    )
    words = ["schedule", "live", str(tmp_path / "jobs.toml"), "--executor", "kubernetes", "--gpus", "--policy", "las"]
    words += ["--image", "registry/team:1", "--claim", f"runs:{tmp_path}", "--queue", "team", "--round", "2s", "--json"]
    with world.alive():
        assert main([*words, "--state", str(tmp_path / "live"), "--network", "100Gb/s"]) == 0
    out, err = capsys.readouterr()
    jobs = {job["name"]: job for job in json.loads(out)["jobs"]}
    assert [job["phase"] for job in jobs.values()] == ["done"] * 3, err
    assert (tmp_path / "theirs.txt").read_text() == "1\n"
    assert "first: running on" in err and "predicted" in err


@pytest.mark.long
@pytest.mark.timeout(600)
def test_paceline_train_grows_shrinks_and_stops_in_its_pods(make_world: Make, tmp_path: Path) -> None:
    """The real command under the real torchrun: two ranks meet, and each start goes on from the checkpoint."""
    pytest.importorskip("torch", reason="needs torch: pip install 'paceline[train]'")
    world = make_world({"a": 1, "b": 1}, torchrun=REAL_TORCHRUN)
    launch = training(tmp_path, epochs=40, directory=str(tmp_path), max_devices=2, grace_s=20.0)

    def reaches(test: Callable[[Observed], bool]) -> Observed:
        return until(world.executor, "job", test, within_s=120.0, every_s=0.3)

    with world.alive():
        world.executor.submit(launch, {"a": 1})
        reaches(lambda seen: seen.progress.get("epoch", 0) >= 1)
        world.executor.resize("job", {"a": 1, "b": 1})
        grown = reaches(lambda seen: seen.progress.get("workers") == 2 or seen.phase == "failed")
        assert grown.phase == "running"
        world.executor.resize("job", {"a": 1})
        shrunk = reaches(lambda seen: seen.progress.get("workers") == 1 or seen.phase == "failed")
        assert shrunk.phase == "running" and shrunk.progress["epoch"] >= grown.progress["epoch"]
        world.executor.stop("job", 20.0)
        stopped = reaches(lambda seen: not seen.holds_devices)
        assert stopped.phase == "stopped", world.kubelet.log(world.store.list("pods")[0]["metadata"]["name"])
        assert (tmp_path / "job" / "checkpoint.pt").exists()
