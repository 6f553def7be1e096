"""A job in the lab: ranks on hosts that links join."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fault_jobs import Job
from fault_ranks import FEATURES, LIMIT_S, PLAIN, TRAINING
from paceline import lab
from warm_python import ENVIRONMENT, TESTS

# The lab ends all ranks when the program of one has ended. Of this one it does not learn that the rank was killed.
UNNOTICED = ("sh", "-c", '"$@"; code=$?; [ $code = 137 ] && sleep 60; exit $code', "sh")


class LabJob:
    """Three ranks, each on a host of its own, which their links join. Nobody but the ranks sees that one is killed."""

    def __init__(self, job: Job, timeout_s: float) -> None:
        self.job, self.timeout_s = job, timeout_s
        self.results: list[Any] = []
        self.ended_at = 0.0

    @contextmanager
    def running(self) -> Iterator[Any]:
        """The cluster, on which the job trains."""
        words = [*PLAIN, "--global-batch", "9", "--timeout", f"{self.timeout_s:g}s", "--out", str(self.job.out)]
        environment = {**FEATURES, "PYTHONPATH": f"{TESTS}:{ENVIRONMENT['PYTHONPATH']}", "GLOO_SOCKET_IFNAME": "pl0"}

        def train() -> None:
            try:
                self.results = cluster.run([*UNNOTICED, *TRAINING, *words], env=environment, timeout=200)
            except lab.HostFailed as error:
                self.results = error.results
            except Exception as error:  # in a thread, where nobody else would say so
                self.job.check(False, f"the lab: {error!r}")
            self.ended_at = time.monotonic()

        with lab.up(3, "1Gb/s", name=f"f{os.getpid()}") as cluster:
            thread = threading.Thread(target=train)
            thread.start()
            until = time.monotonic() + 120
            while self.job.saved() < (2, 0) and thread.is_alive() and time.monotonic() < until:
                time.sleep(0.2)
            if self.job.saved() < (2, 0):
                raise AssertionError(f"it does not train: {[result.stderr for result in self.results]}")
            yield cluster
            thread.join(LIMIT_S + 60)
            if thread.is_alive():
                self.job.outcome.hung += 1
                self.job.check(False, "a rank hangs")
        self.job.outcome.seconds = self.ended_at - self.job.fault_at

    def lines(self) -> list[str]:
        return [line for result in self.results for line in result.stderr.splitlines() if line.startswith("paceline: ")]

    def pids(self) -> list[int]:
        """The programs of the ranks, in their order."""
        found: dict[int, int] = {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError):
                words = (process / "environ").read_bytes().split(b"\0")
                if f"PYTHONPATH={TESTS}:{ENVIRONMENT['PYTHONPATH']}".encode() in words and b"GLOO_SOCKET_IFNAME=pl0" in words:
                    rank = next(int(word[5:]) for word in words if word.startswith(b"RANK="))
                    found[rank] = max(found.get(rank, 0), int(process.name))
        return [found[rank] for rank in sorted(found)]
