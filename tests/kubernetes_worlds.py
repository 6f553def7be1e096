"""Clusters of the fake Kubernetes with an executor on them, one step at a time or running by themselves."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kubernetes_fake import Controllers, FakeServer, Kubelet, Store
from kubernetes_nodes import GPU, node
from paceline.scheduling.executors.executor import Observed
from paceline.scheduling.executors.kubernetes.executor import KubernetesExecutor
from paceline.scheduling.executors.kubernetes.settings import KubernetesSettings
from paceline.scheduling.launch import Launch


class World:
    """A cluster, its server and an executor. ``torchrun``: text of the program; with it pods are processes.

    ``more``: settings of the executor.
    """

    def __init__(
        self, base: Path, config: Path, nodes: Mapping[str, int], elastic: bool = True, torchrun: str = "", **more: Any
    ) -> None:
        self.base, self.store = base, Store()
        for name, devices in nodes.items():
            self.store.create("nodes", "", node(name, devices))
        self.controllers = Controllers(self.store, elastic)
        self.kubelet = Kubelet(self.store, bool(torchrun), with_torchrun(base, torchrun) if torchrun else {})
        self.server = FakeServer(self.store).start()
        self.server.logs = self.kubelet.log
        self.server.kubeconfig(config)
        self.settings = KubernetesSettings(image="registry/paceline:1", claim="runs", mount=str(base), **more)
        self.executor = self.again()

    def again(self) -> KubernetesExecutor:
        """An executor on the same records, as after a restart of the runner."""
        return KubernetesExecutor(self.base / "jobs", self.settings)

    def queue(
        self, quotas: Mapping[str, int], resource: str = GPU, labels: Mapping[str, str] | None = None, **spec: Any
    ) -> None:
        """Make a LocalQueue ``team`` with these flavors."""
        flavors = []
        for name, quota in quotas.items():
            label = {"nodeLabels": {"flavor": (labels or {})[name]}} if labels else {}
            self.store.create("resourceflavors", "", {"metadata": {"name": name}, "spec": label})
            flavors.append({"name": name, "resources": [{"name": resource, "nominalQuota": str(quota)}]})
        groups = [{"coveredResources": [resource], "flavors": flavors}]
        self.store.create("clusterqueues", "", {"metadata": {"name": "all"}, "spec": {"resourceGroups": groups, **spec}})
        self.store.create("localqueues", "default", {"metadata": {"name": "team"}, "spec": {"clusterQueue": "all"}})

    def step(self, times: int = 1) -> Mapping[str, Observed]:
        """Let the cluster and the executor work."""
        seen: Mapping[str, Observed] = {}
        for _ in range(times):
            self.controllers.settle()
            self.kubelet.step()
            self.controllers.settle()
            seen = self.executor.poll()
        return seen

    def until(self, name: str, phase: str, most: int = 12) -> Observed:
        """Work until a job is in a phase."""
        for _ in range(most):
            seen = self.step()[name]
            if seen.phase == phase:
                return seen
        raise AssertionError(seen)

    def pods(self, name: str) -> list[dict[str, Any]]:
        """Pods of a job that have not ended, by index."""
        found = [p for p in self.store.list("pods") if p["metadata"]["labels"]["paceline/job"] == name]
        alive = [p for p in found if p["status"].get("phase") not in ("Succeeded", "Failed")]
        return sorted(alive, key=lambda p: int(p["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]))

    def placed(self, name: str) -> dict[str, int]:
        """Devices of each node that the pods of a job really hold."""
        held: dict[str, int] = {}
        for pod in self.pods(name):
            where = pod["spec"]["nodeName"]
            devices = int(pod["spec"]["containers"][0]["resources"]["requests"][self.settings.resource])
            held[where] = held.get(where, 0) + devices
        return held

    def runs(self, launch: Launch, placement: Mapping[str, int]) -> Observed:
        """Submit a job and let it start."""
        self.executor.submit(launch, placement)
        return self.until(launch.name, "running")

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Let the cluster work by itself in the block."""
        ends = threading.Event()

        def work() -> None:
            while not ends.wait(0.05):
                self.controllers.step()
                self.kubelet.step()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()


@pytest.fixture
def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    """Builder of worlds, which are closed after the test."""
    worlds: list[World] = []
    config = tmp_path / "kubeconfig"
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config))

    def build(nodes: Mapping[str, int], **more: Any) -> World:
        worlds.append(World(tmp_path, config, nodes, **more))
        return worlds[-1]

    yield build
    for world in worlds:
        world.kubelet.close()
        if world.server.is_up:
            world.server.stop()


TORCHRUN = """#!/usr/bin/env python3
import json, os, pathlib, sys, time
words = sys.argv[1:]
value = lambda name: words[words.index(name) + 1]
nodes, rank, each = int(value("--nnodes")), int(value("--node-rank")), int(value("--nproc-per-node"))
out, epochs = pathlib.Path(value("--out")), int(value("--epochs"))
out.mkdir(parents=True, exist_ok=True)
assert ("--resume" in words) == (out / "checkpoint.pt").exists()
here = out / f"rank{rank}.{value('--master-port')}"  # a rendezvous: all ranks of this start are there
here.touch()
while len(list(out.glob(f"rank*.{value('--master-port')}"))) < nodes:
    time.sleep(0.02)
done = json.loads((out / "checkpoint.pt").read_text()) if (out / "checkpoint.pt").exists() else 0
def workers(job):  # with which a job has trained so far
    file = out.parent / job / "epochs"
    return {line.split()[1] for line in file.read_text().splitlines()} if file.exists() else set()
def may_end():
    needs = json.loads((out / "needs").read_text()) if (out / "needs").exists() else {}
    now = {out.name: {str(nodes * each)}}
    return all(set(sizes) <= workers(job) | now.get(job, set()) for job, sizes in needs.items())
for epoch in range(done + 1, epochs + 1):
    time.sleep(0.4 / (nodes * each))
    if rank == 0:
        while epoch == epochs and not may_end():
            time.sleep(0.02)
        with (out / "epochs").open("a") as file:
            file.write(f"{epoch} {nodes * each}\\n")
        (out / "new").write_text(str(epoch))
        (out / "new").replace(out / "checkpoint.pt")
        reached = {"epoch": epoch, "step": 10 * epoch, "samples_per_s": 1e3 * nodes * each, "workers": nodes * each}
        (out / "new").write_text(json.dumps(reached))
        (out / "new").replace(out / "progress.json")
while rank and json.loads((out / "progress.json").read_text())["epoch"] < epochs:
    time.sleep(0.05)
"""
"""A torchrun whose ranks meet, and whose first one trains an epoch in 0.4 device-seconds, with a checkpoint each.

A file ``needs`` has the numbers of workers with which other jobs and this one have trained before its last epoch begins.
"""


REAL_TORCHRUN = f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n'


def with_torchrun(base: Path, text: str = TORCHRUN) -> dict[str, str]:
    """Variables of processes that find this torchrun."""
    path = base / "bin" / "torchrun"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return {"PATH": f"{path.parent}:{os.environ['PATH']}"}
