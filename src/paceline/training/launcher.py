"""Start workers on this machine with torchrun's environment, end them in order, and say who failed."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from paceline.errors import Interrupted, UserError
from paceline.hardware import Cluster

GRACE_S = 5.0
"""Between asking the other workers to end and ending them."""
_SETTLE_S = 0.2  # a killed worker and those that lose their connection by it end almost at once
LIFELINE, ERROR_FILE = "PACELINE_LIFELINE", "PACELINE_ERROR_FILE"
"""Variables of a worker: a pipe that closes when its launcher ends, and where it leaves its error for the launcher."""


class WorkerFailed(RuntimeError):
    """A worker ended early; the message names its rank and what ended it. ``code`` is the exit code to pass on."""

    def __init__(self, message: str, code: int) -> None:
        self.code = code
        super().__init__(message)


def run_workers(command: Sequence[str], workers: int) -> None:
    """Run ``python COMMAND`` as ``workers`` ranks and wait for them.

    Each rank gets its share of the cores (``OMP_NUM_THREADS``, unless it is set). When one rank dies, or this process is told
    to end, the others are ended. The ranks meet at a store of this process.

    Raises:
        UserError: a rank ended with a user's error.
        WorkerFailed: a rank was killed or returned another code than 0.
    """
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    alive, lifeline = os.pipe()
    processes: list[subprocess.Popen[bytes]] = []
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(workers):
                own = {LIFELINE: str(alive), ERROR_FILE: str(Path(folder) / f"{rank}.json")}
                processes.append(_start(command, {**_environment(rank, workers, store.port), **own}, alive))
                threading.Thread(target=_await, args=(rank, processes[-1], ended), daemon=True).start()
            failed = _first_failed(processes, ended)
        finally:
            _end(processes)
            os.close(alive)
            os.close(lifeline)
        if failed:
            rank = min(failed, key=lambda rank: _cause(rank, processes[rank].returncode, folder))
            raise _error(rank, processes[rank], _left(folder, rank))


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise ``Interrupted`` in here, where nobody else handles them."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise Interrupted(number)

    usual: Any = signal.SIG_DFL
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: usual, signal.SIGHUP: usual}
    on_main = threading.current_thread() is threading.main_thread()  # no other thread may set a handler
    handled = [n for n, default in defaults.items() if on_main and signal.getsignal(n) == default]
    for number in handled:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, defaults[number])


def follow_launcher() -> None:
    """End this worker as soon as its launcher has ended, however that was; nothing where no launcher says how to know."""
    if LIFELINE not in os.environ:
        return

    def watch(pipe: int) -> None:
        os.read(pipe, 1)  # nobody writes: it returns when the other end closes
        os._exit(1)

    threading.Thread(target=watch, args=(int(os.environ[LIFELINE]),), name="paceline-lifeline", daemon=True).start()


def leave_error(message: str, fix: str = "", mistake: bool = False) -> bool:
    """Hand an error to the launcher; ``mistake``: of the user's. False where there is no launcher to say it."""
    if ERROR_FILE not in os.environ:
        return False
    with suppress(OSError):  # the disk may be what is wrong
        Path(os.environ[ERROR_FILE]).write_text(json.dumps({"message": message, "fix": fix, "mistake": mistake}))
        return True
    return False


def probe(workers: int) -> Cluster:
    """Measure this machine with ``workers`` ranks at once. Raises UserError for fewer than one."""
    if workers < 1:
        raise UserError(f"{workers} workers", "give a whole number from 1 up")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "cluster.json"
        run_workers(["-m", "paceline.hardware.probe", str(path)], workers)
        return Cluster.from_json(json.loads(path.read_text()))


def _environment(rank: int, workers: int, port: int) -> dict[str, str]:
    """What torchrun sets, for ranks that meet at a store that is there already."""
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


def _start(command: Sequence[str], environment: Mapping[str, str], alive: int) -> subprocess.Popen[bytes]:
    """A worker in a session of its own: Ctrl-C is for the launcher, which ends its workers in order."""
    return subprocess.Popen(
        [sys.executable, "-u", *command],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=[alive],
        env={**os.environ, **environment},
    )


def _await(rank: int, process: subprocess.Popen[bytes], ended: queue.SimpleQueue[int]) -> None:
    process.wait()
    ended.put(rank)


def _first_failed(processes: Sequence[subprocess.Popen[bytes]], ended: queue.SimpleQueue[int]) -> list[int]:
    """The ranks that failed first, in the order of their ends; empty when all have ended well."""
    failed: list[int] = []
    with suppress(queue.Empty):
        for _ in processes:
            rank = ended.get(timeout=_SETTLE_S if failed else None)
            if processes[rank].returncode != 0:
                failed.append(rank)
    return failed


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End every worker that still runs: asked first, after a while, or a second signal, made to."""
    try:
        for process in processes:
            process.terminate()
        until = time.monotonic() + GRACE_S
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _left(folder: str, rank: int) -> dict[str, Any]:
    """The error that a rank has left; empty where it has left none."""
    with suppress(OSError, ValueError):
        error: dict[str, Any] = json.loads((Path(folder) / f"{rank}.json").read_text())
        return error
    return {}


def _cause(rank: int, code: int, folder: str) -> int:
    """A killed rank is the cause, then one with a user's error; those that lost their connection by it are not."""
    return 0 if code < 0 else 1 if _left(folder, rank).get("mistake") else 2


def _error(rank: int, process: subprocess.Popen[bytes], left: Mapping[str, Any]) -> UserError | WorkerFailed:
    code = process.returncode
    if left.get("mistake"):
        return UserError(left["message"], left["fix"])
    worker = f"worker rank {rank} (process {process.pid})"
    if code < 0:
        return WorkerFailed(f"{worker} was killed by {signal.Signals(-code).name}", 128 - code)
    why = f": {left['message']}" if left else ""
    return WorkerFailed(f"{worker} ended with code {code}{why}", code)
