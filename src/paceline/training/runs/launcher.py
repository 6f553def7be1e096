"""Start of workers on this machine by PyTorch's elastic launcher (as in ``torchrun``), ordered end, report of failures."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from paceline.errors import Interrupted, UserError
from paceline.hardware import Cluster
from paceline.training.runs.stop_requests import AT_ONCE, STOP_FILE, worker_processes

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

LAUNCHER = "PACELINE_LAUNCHER"
"""Variable of a worker: the process that started it and that prints the worker's error."""
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Variable of a worker, set by the elastic launcher: where it leaves its error."""
WATCH_S = 0.5
"""How often a worker looks whether its launcher still runs, where the system does not tell."""


WORKERS_A_CORE = 4
"""More processes on one core mostly wait for each other."""
ALWAYS_HELD = 16
"""Workers that any host may start, however slowly they run."""

RESTARTS = 3
"""Restarts of an elastic run, in all."""
SUSPENDED_S = 3.0
"""How long a worker may stay suspended after another one's end."""
GRACE_S = 60.0
"""How long workers may take to stop in order; then they are ended."""


class WorkerFailed(RuntimeError):
    """Error for a worker that ended early, with its rank and the cause. ``code`` is the exit code for this process."""

    def __init__(self, message: str, code: int) -> None:
        self.code = code
        super().__init__(message)


def check_host_holds(workers: int) -> None:
    """Raise UserError for more workers than the cores of this host can run."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most = max(ALWAYS_HELD, WORKERS_A_CORE * cores)
    if workers > most:
        raise UserError(
            f"{workers} workers are too many for the {cores} core{'s' if cores > 1 else ''} of this host",
            f"give at most {most}; on several hosts, torchrun -m paceline.training starts the same run",
        )


class Interruption:
    """State of this process's signals in ``interruptible``.

    Attributes:
        ask: passes a signal's number to workers, which stop in order or at once. None: there are no workers, and a signal
            raises ``Interrupted``.
        asked: number that was passed to them; 0: none. A second signal raises, as does one that is raised here ``grace_s``
            later if they still run.
    """

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self.ask: Callable[[int, bool], None] | None = None
        self.asked, self._grace_s = 0, grace_s
        self._timer: threading.Timer | None = None

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal. Raises Interrupted unless workers are asked to stop."""
        if self.ask is None:
            raise Interrupted(number)
        self.ask(number, bool(self.asked))
        if self.asked:
            raise Interrupted(number)
        self.asked = number
        self._timer = threading.Timer(self._grace_s, os.kill, (os.getpid(), number))
        self._timer.daemon = True
        self._timer.start()

    def answered(self) -> None:
        """Record that the workers have ended."""
        self.ask = None
        if self._timer is not None:
            self._timer.cancel()


def run_workers(command: Sequence[str], workers: int, interruption: Interruption | None = None, restarts: int = 0) -> None:
    """Run ``python COMMAND`` as ``workers`` ranks and wait for them.

    Each rank gets its share of the cores (``OMP_NUM_THREADS``, unless it is set). When one rank dies, or an exception such as
    ``Interrupted`` arrives here, the others are ended.

    Args:
        restarts: number of restarts of all ranks after one was lost. An error of a rank itself causes no restart.
        interruption: interruption of workers that stop in order (``StopRequests``); None: a signal ends them.

    Raises:
        UserError: a rank ended with a user's error.
        Interrupted: the workers were asked to stop, and have.
        WorkerFailed: a rank was killed or returned another code than 0.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
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
        max_restarts=0,  # it would start them again whatever their error was: see below
        signals_to_handle="",  # they are the caller's: see interruptible
    )
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    variables = {
        LAUNCHER: str(os.getpid()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        stop_file = Path(folder) / "stop"
        if interruption is not None:
            variables[STOP_FILE] = str(stop_file)
            interruption.ask = partial(_request_stop, stop_file)
        ended = threading.Event()
        if interruption is not None and sys.platform == "linux":
            threading.Thread(target=_end_suspended, args=(stop_file, ended), name="paceline-suspended", daemon=True).start()
        try:
            with _environment(variables):
                while True:
                    try:
                        elastic_launch(config, sys.executable)("-u", *command)
                        return
                    except ChildFailedError as error:
                        if interruption is not None and (asked := interruption.asked or _stopped_by(error.failures)):
                            raise Interrupted(asked) from None
                        if not restarts or not _only_lost(error.failures):
                            raise _error(*_first(error.failures)) from None
                    restarts -= 1
        finally:
            ended.set()
            if interruption is not None:
                interruption.answered()


def _end_suspended(stop_file: Path, ended: threading.Event) -> None:
    """Kill suspended workers (SIGSTOP) after another one has ended, because no other signal ends them."""
    running: dict[int, int] = {}
    seen: set[int] = set()
    since = 0.0  # when the first of those of one start ended
    while not ended.wait(WATCH_S):
        for pid in worker_processes(stop_file) - seen:
            seen.add(pid)
            with suppress(OSError):
                running[pid] = os.pidfd_open(pid)
        gone = [pid for pid, descriptor in running.items() if select.select([descriptor], [], [], 0)[0]]
        for pid in gone:
            os.close(running.pop(pid))
        since = (since or time.monotonic() if gone or since else 0.0) if running else 0.0
        if since and time.monotonic() - since > SUSPENDED_S:
            for pid, descriptor in running.items():
                with suppress(OSError):
                    if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt":
                        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    for descriptor in running.values():
        os.close(descriptor)


def _request_stop(stop_file: Path, number: int, at_once: bool) -> None:
    stop_file.write_text(f"{number} {AT_ONCE}" if at_once else f"{number}")


def _stopped_by(failures: Mapping[int, ProcessFailure]) -> int:
    """Return the signal for which all ranks have stopped in order, even if it was sent to only one worker; 0 for another end.

    The launcher ends those that stop slightly later than the first.
    """
    codes, in_order = {failure.exitcode for failure in failures.values()}, 128 + signal.SIGTERM
    return signal.SIGTERM if in_order in codes <= {in_order, -signal.SIGTERM} else 0


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Make SIGINT, SIGTERM and SIGHUP raise ``Interrupted`` in the block, unless the script handles them, or ask workers to
    stop.
    """
    interruption = Interruption()
    usual: Any = signal.SIG_DFL
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: usual, signal.SIGHUP: usual}
    on_main = threading.current_thread() is threading.main_thread()  # no other thread may set a handler
    handled = [n for n, default in defaults.items() if on_main and signal.getsignal(n) == default]
    for number in handled:
        signal.signal(number, interruption.on_signal)
    try:
        yield interruption
    finally:
        for number in handled:
            signal.signal(number, defaults[number])


def follow_launcher() -> None:
    """End this worker as soon as the process that started it has ended in any way."""
    launcher = int(os.environ.get(LAUNCHER, os.getppid()))
    threading.Thread(target=_follow, args=(launcher,), name="paceline-launcher", daemon=True).start()


def _follow(launcher: int) -> None:
    if sys.platform == "linux":
        with suppress(ProcessLookupError):  # it has ended already
            select.select([os.pidfd_open(launcher)], [], [])
    else:
        while os.getppid() == launcher:
            time.sleep(WATCH_S)
    os._exit(1)


def leave_error(message: str, fix: str = "", mistake: bool = False, lost: bool = False) -> bool:
    """Hand an error to the launcher. Returns False without a launcher.

    Args:
        mistake: error of the user.
        lost: loss of another rank, so that a restart may help.
    """
    if LAUNCHER not in os.environ or ERROR_FILE not in os.environ:
        return False
    left = {"message": message, "timestamp": int(time.time()), "fix": fix, "mistake": mistake, "lost": lost}
    with suppress(OSError):  # the disk may be what is wrong
        Path(os.environ[ERROR_FILE]).write_text(json.dumps(left))
        return True
    return False


def probe(workers: int) -> Cluster:
    """Measure this machine with ``workers`` ranks at once. Raises UserError for fewer than one, or too many for its cores."""
    if workers < 1:
        raise UserError(f"{workers} workers", "give a whole number from 1 up")
    check_host_holds(workers)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "cluster.json"
        run_workers(["-m", "paceline.hardware.probe", str(path)], workers)
        return Cluster.from_json(json.loads(path.read_text()))


def _rank_error(failure: ProcessFailure) -> Mapping[str, Any]:
    """Return the error that a rank has left; empty if there is none."""
    data = failure.error_file_data
    return data if "mistake" in data else {}


def _only_lost(failures: Mapping[int, ProcessFailure]) -> bool:
    """Return whether a restart may help: ranks were killed, ended silently or lost another, and no rank has an error."""
    return all(_rank_error(failure).get("lost", True) for failure in failures.values())


def _first(failures: Mapping[int, ProcessFailure]) -> tuple[int, ProcessFailure]:
    """Return the rank that failed first and how; the other ranks then lost it.

    A killed rank comes first, then one with a user's error, then one that ended silently. Errors of others are often lost
    connections to it, and come after its own error if they are recognized as such. Ranks that the launcher ended (by SIGTERM,
    then SIGKILL) come last.
    """
    hung = any("timed out" in str(_rank_error(failure).get("message", "")).lower() for failure in failures.values())

    def order(item: tuple[int, ProcessFailure]) -> tuple[int, int]:
        code, left = item[1].exitcode, _rank_error(item[1])
        if code == -signal.SIGTERM or (hung and code == -signal.SIGKILL):
            return 5, item[1].timestamp
        said = 2 if not left else 1 if left["mistake"] else 4 if left.get("lost") else 3
        return 0 if code < 0 else said, item[1].timestamp

    return min(failures.items(), key=order)


def _error(rank: int, failure: ProcessFailure) -> UserError | WorkerFailed:
    code, left = failure.exitcode, _rank_error(failure)
    if left.get("mistake"):
        return UserError(left["message"], left["fix"])
    worker = f"worker rank {rank} (process {failure.pid})"
    if code < 0:
        return WorkerFailed(f"{worker} was killed by {signal.Signals(-code).name}", 128 - code)
    why = f": {left['message']}" if left else ""
    return WorkerFailed(f"{worker} ended with code {code}{why}", code)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})
