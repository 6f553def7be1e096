"""Start workers on this machine with PyTorch's own elastic launcher (what ``torchrun`` runs), and say who failed."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import UserError
from paceline.hardware import Cluster


class WorkerFailed(RuntimeError):
    """A worker ended early; the message names its rank and what ended it. ``code`` is the exit code to pass on."""

    def __init__(self, message: str, code: int) -> None:
        self.code = code
        super().__init__(message)


def run_workers(command: Sequence[str], workers: int) -> None:
    """Run ``python COMMAND`` as ``workers`` ranks and wait for them.

    Each rank gets its share of the cores (``OMP_NUM_THREADS``, unless it is set). When one rank dies the others are ended.

    Raises:
        WorkerFailed: a rank was killed or returned another code than 0.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    logging.getLogger("torch.distributed.elastic.multiprocessing").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        run_id=f"paceline-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    with _environment({"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads), "TORCH_CPP_LOG_LEVEL": "ERROR"}):
        try:
            elastic_launch(config, sys.executable)("-u", *command)
        except ChildFailedError as error:

            def cause(item: tuple[int, ProcessFailure]) -> tuple[int, int]:
                # A killed rank is the cause; those that lost their connection or were ended by the launcher are not.
                code = item[1].exitcode
                return 2 if code == -signal.SIGTERM else int(code >= 0), item[1].timestamp

            rank, failure = min(error.failures.items(), key=cause)
            raise WorkerFailed(*_verdict(rank, failure.exitcode, failure.pid)) from None


def probe(workers: int) -> Cluster:
    """Measure this machine with ``workers`` ranks at once. Raises UserError for fewer than one."""
    if workers < 1:
        raise UserError(f"{workers} workers", "give a whole number from 1 up")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "cluster.json"
        run_workers(["-m", "paceline.hardware.probe", str(path)], workers)
        return Cluster.from_json(json.loads(path.read_text()))


def _verdict(rank: int, exitcode: int, pid: int) -> tuple[str, int]:
    if exitcode < 0:
        return f"worker rank {rank} (process {pid}) was killed by {signal.Signals(-exitcode).name}", 128 - exitcode
    return f"worker rank {rank} (process {pid}) ended with code {exitcode}", exitcode


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})
