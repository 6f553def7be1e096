"""Kubelets of all nodes. They run the containers' commands as processes of this machine, or only say so.

Kubernetes documentation, "Pod Lifecycle": SIGTERM, then SIGKILL after the grace period. "Downward API": files follow
annotations.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from kubernetes_fake import rules
from kubernetes_fake.store import Object, Store, now


class Kubelet:
    """Kubelets. ``processes``: whether commands run. ``environment``: variables of every process."""

    def __init__(self, store: Store, processes: bool = False, environment: dict[str, str] | None = None) -> None:
        self._store, self._processes, self._environment = store, processes, environment or {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._killed_at: dict[str, float] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="kubelet"))
        self.dead: set[str] = set()

    def step(self) -> None:
        for pod in self._store.list("pods"):
            if pod["spec"].get("nodeName") and pod["spec"]["nodeName"] not in self.dead:
                self._run(pod)
        known = {pod["metadata"]["uid"] for pod in self._store.list("pods")}
        for uid in set(self._running) - known:  # deleted without grace
            self._signal(uid, signal.SIGKILL)
            del self._running[uid]

    def _run(self, pod: Object) -> None:
        head, uid = pod["metadata"], pod["metadata"]["uid"]
        if not rules.is_alive(pod):
            return
        if pod["status"].get("phase") != "Running" and not head.get("deletionTimestamp"):
            if self._processes:
                self._start(pod)
            running = {"name": "training", "state": {"running": {"startedAt": now()}}}
            self._store.status(pod, phase="Running", startTime=now(), containerStatuses=[running])
            return
        if self._processes and uid in self._running:
            self._write_start(pod)
            code = self._running[uid].poll()
            if head.get("deletionTimestamp") and code is None:
                if uid not in self._killed_at:
                    self._killed_at[uid] = time.monotonic()
                    self._signal(uid, signal.SIGTERM)
                elif time.monotonic() - self._killed_at[uid] > pod["spec"]["terminationGracePeriodSeconds"]:
                    self._signal(uid, signal.SIGKILL)
            if code is not None:
                del self._running[uid]
                self.end(pod, code if code >= 0 else 128 - code)
        elif head.get("deletionTimestamp"):
            self._store.remove(("pods", head["namespace"], head["name"]))

    def end(self, pod: Object, code: int, **status: Any) -> None:
        """End a pod with an exit code."""
        head = pod["metadata"]
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now()}
        phase = "Failed" if code else "Succeeded"
        self._store.status(pod, phase=phase, containerStatuses=[{"name": "training", "state": {"terminated": ended}}], **status)
        if head.get("deletionTimestamp"):
            self._store.remove(("pods", head["namespace"], head["name"]))

    def _start(self, pod: Object) -> None:
        uid, container = pod["metadata"]["uid"], pod["spec"]["containers"][0]
        (self._folder / uid).mkdir()
        self._write_start(pod)
        given = {each["name"]: each["value"] for each in container["env"]}
        place = {"PACELINE_POD_INFO": str(self._folder / uid), "MASTER_ADDR": "127.0.0.1"}
        with (self._folder / pod["metadata"]["name"]).open("ab") as log:
            self._running[uid] = subprocess.Popen(
                container["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **given, **place, **self._environment},
                start_new_session=True,
            )

    def _write_start(self, pod: Object) -> None:
        folder = self._folder / pod["metadata"]["uid"]
        (folder / "new").write_text(pod["metadata"]["annotations"].get("paceline/start", ""))
        (folder / "new").replace(folder / "start")

    def log(self, pod: str) -> str:
        path = self._folder / pod
        return path.read_text() if path.is_file() else ""

    def _signal(self, uid: str, number: int) -> None:
        process = self._running[uid]
        if process.poll() is None:
            if number == signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)

    def close(self) -> None:
        for uid in list(self._running):
            self._signal(uid, signal.SIGKILL)
            self._running.pop(uid).wait()
