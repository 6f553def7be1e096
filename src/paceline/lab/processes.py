"""One command on all hosts at once: torchrun's environment, output by host, and an end of all ranks if one fails."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, Any, TextIO

from paceline.errors import UserError
from paceline.lab.kernel import MARK
from paceline.lab.ranks import Host, environment, fill

GRACE_S = 5.0
"""Between asking the other hosts to end and ending them."""
TIMED_OUT = 124
"""The code of a run that took too long, as of timeout(1)."""
LOST = 1
"""The code of a run in which a host was lost."""
LOOK_S = 0.2
"""Between two looks for a lost host."""
_PRINTING = threading.Lock()


@dataclass(frozen=True)
class HostResult:
    """Result of one rank.

    ``code`` is its exit code, 128 + n when signal n ended it; ``seconds`` from its start to its end; ``ended`` is True if it
    was ended because another rank failed or the time was up.
    """

    host: int
    address: str
    rank: int
    local_rank: int
    code: int
    seconds: float
    stdout: str
    stderr: str
    ended: bool = False


class HostFailed(RuntimeError):
    """Error of a host's command; the message names the host. ``code`` is its exit code, ``results`` those of all ranks."""

    def __init__(self, message: str, code: int, host: int, results: Sequence[HostResult]) -> None:
        self.code, self.host, self.results = code, host, list(results)
        super().__init__(message)


@dataclass(frozen=True)
class HostLost:
    """Error for a host that can no longer reach the others although its processes run; ``message`` names it."""

    host: int
    message: str


@dataclass
class _RankProcess:
    host: Host
    rank: int
    local_rank: int
    label: str
    process: subprocess.Popen[str]
    started: float
    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    seconds: float | None = None
    ended: bool = False
    unread: bool = False

    @property
    def code(self) -> int:
        code = self.process.returncode
        if code is None:
            return 128 + signal.SIGKILL  # not even that has ended it yet: it waits in the kernel
        return 128 - code if code < 0 else code

    def end(self, number: signal.Signals) -> None:
        """Signal the process group that this rank leads.

        The leader is not yet reaped, so no other process can have its number.
        """
        if self.seconds is None:
            self.ended = True
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def reap(self) -> None:
        self.seconds = time.perf_counter() - self.started
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # processes that it left in the background hold its output open
        self.process.wait()
        for thread in self.threads:
            thread.join(timeout=GRACE_S)  # a process in another session may still hold it

    def result(self) -> HostResult:
        out, err = "".join(self.stdout), "".join(self.stderr)
        seconds = self.seconds or 0.0
        return HostResult(
            self.host.number, self.host.address, self.rank, self.local_rank, self.code, seconds, out, err, self.ended
        )


def execute(
    hosts: Sequence[Host],
    command: Sequence[str],
    *,
    lab: str,
    port: int,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    per_host: int = 1,
    stream: bool = False,
    lost_host: Callable[[], HostLost | None] = lambda: None,
) -> list[HostResult]:
    """Run ``command`` on every host in parallel, ``per_host`` times each, and wait for all.

    ``{rank}``, ``{hosts}`` and ``{address}`` in it are replaced. Each rank leads a separate process group. The groups of the
    others are ended if a rank fails, if ``lost_host`` returns a host, or after ``timeout`` seconds.

    Returns:
        A result per rank, in the order of ranks.

    Raises:
        HostFailed: naming the first host that failed.
        BrokenPipeError: the streamed output has no reader any more.
        UserError: for a command that is not there, or fewer than one process a host.
    """
    if per_host < 1:
        raise UserError(f"{per_host} processes on a host", "give a whole number from 1 up")
    if timeout is not None and not timeout > 0:
        raise UserError(f"a timeout of {timeout} s", "give a positive number of seconds")
    path = {**os.environ, **(env or {})}.get("PATH")
    if not command or not shutil.which(command[0], path=path):
        raise UserError(f"no program {command[0]!r}" if command else "no command", "give one that runs on this machine")
    ranks: list[_RankProcess] = []
    done: queue.SimpleQueue[_RankProcess] = queue.SimpleQueue()
    with _told_to_end() as later:
        try:
            for rank in range(len(hosts) * per_host):
                with later():  # a rank that has started is among ``ranks`` before anything ends them
                    ranks.append(_start(hosts, command, rank, per_host, lab, port, env or {}, stream))
                    threading.Thread(target=_await, args=(ranks[-1], done), daemon=True).start()
            failed = _collect(ranks, done, timeout, lost_host)
        except BaseException:
            _end(ranks, done)
            raise
    results = [rank.result() for rank in ranks]
    if failed is None:
        return results
    if isinstance(failed, HostLost):
        raise HostFailed(failed.message, LOST, failed.host, results)
    if failed.unread:
        raise BrokenPipeError
    if failed.ended:
        late = sorted({rank.host.number for rank in ranks if rank.ended})
        which = f"host{'s' * (len(late) > 1)} {', '.join(map(str, late))}"
        raise HostFailed(
            f"{which} still ran after {timeout:g} s, and {'were' if len(late) > 1 else 'was'} ended",
            TIMED_OUT,
            failed.host.number,
            results,
        )
    raise HostFailed(_verdict(failed), failed.code, failed.host.number, results)


@contextmanager
def _told_to_end() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Let SIGTERM and SIGHUP end this process and its children in order, as Ctrl-C does, unless they are handled already.

    Yields:
        A function whose context manager delays these signals and Ctrl-C until its end.
    """
    holding, waiting = False, list[int]()

    def leave(number: int, frame: FrameType | None) -> None:
        if holding:
            waiting.append(number)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + number)

    @contextmanager
    def later() -> Iterator[None]:
        nonlocal holding
        holding = True
        try:
            yield
        finally:
            holding = False
        if waiting:
            leave(waiting[0], None)

    usual: dict[signal.Signals, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    on_main = threading.current_thread() is threading.main_thread()  # no other thread may set a handler
    numbers = [n for n, handler in usual.items() if on_main and signal.getsignal(n) is handler]
    for number in numbers:
        signal.signal(number, leave)
    try:
        yield later
    finally:
        for number in numbers:
            signal.signal(number, usual[number])


def _start(
    hosts: Sequence[Host],
    command: Sequence[str],
    rank: int,
    per_host: int,
    lab: str,
    port: int,
    env: Mapping[str, str],
    stream: bool,
) -> _RankProcess:
    host, local = hosts[rank // per_host], rank % per_host
    argv = [*host.enter, *fill(command, rank, len(hosts), host.address)]
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            env={**os.environ, **environment(hosts, rank, per_host, port), MARK: lab, **env},
        )
    except OSError as error:
        raise UserError(f"cannot start {argv[0]}: {error.strerror or error}") from error
    label = f"host {host.number}" if per_host == 1 else f"host {host.number}.{local}"
    started = _RankProcess(host, rank, local, label, process, time.perf_counter())
    assert process.stdout and process.stderr
    for pipe, lines, to in ((process.stdout, started.stdout, sys.stdout), (process.stderr, started.stderr, sys.stderr)):
        prefix = f"{label} | " if stream else ""
        started.threads.append(threading.Thread(target=_read, args=(started, pipe, lines, prefix, to), daemon=True))
        started.threads[-1].start()
    return started


def _read(rank: _RankProcess, pipe: IO[str], lines: list[str], prefix: str, to: TextIO) -> None:
    for line in pipe:
        lines.append(line)
        if prefix:
            try:
                with _PRINTING:
                    to.write(f"{prefix}{line.rstrip()}\n")
                    to.flush()
            except BrokenPipeError:
                rank.unread = True
                pipe.close()  # the reader has gone, as in `| head -1`: the command learns it in the same way
                return


def _await(rank: _RankProcess, done: queue.SimpleQueue[_RankProcess]) -> None:
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, rank.process.pid, os.WEXITED | os.WNOWAIT)  # left to be reaped, so its number stays its own
    else:
        rank.process.wait()
    done.put(rank)


def _collect(
    ranks: Sequence[_RankProcess],
    done: queue.SimpleQueue[_RankProcess],
    timeout: float | None,
    lost_host: Callable[[], HostLost | None],
) -> _RankProcess | HostLost | None:
    """Wait for all ranks and return the first that failed, or None. After a failure or the timeout, the rest are ended."""
    until = time.perf_counter() + (float("inf") if timeout is None else timeout)
    failed: _RankProcess | HostLost | None = None
    while failed is None and any(rank.seconds is None for rank in ranks):
        try:
            rank = done.get(timeout=max(0.0, min(LOOK_S, until - time.perf_counter())))
        except queue.Empty:
            late = time.perf_counter() >= until
            failed = next(rank for rank in ranks if rank.seconds is None) if late else lost_host()
            continue
        rank.reap()
        failed = rank if rank.code != 0 else None
        # A rank that fails because its host is lost names a symptom; the card is the cause.
        failed = (failed and lost_host()) or failed
    if failed is not None:
        _end(ranks, done)
    return failed


def _end(ranks: Sequence[_RankProcess], done: queue.SimpleQueue[_RankProcess]) -> None:
    """End all running ranks, by SIGTERM first and SIGKILL after a while."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for rank in ranks:
            rank.end(number)
        until = time.perf_counter() + GRACE_S
        while any(rank.seconds is None for rank in ranks):
            try:
                done.get(timeout=max(0.0, until - time.perf_counter())).reap()
            except queue.Empty:
                break


def _verdict(rank: _RankProcess) -> str:
    where = f"{rank.label} ({rank.host.address}, rank {rank.rank})"
    code = rank.process.returncode
    last = next((line.strip() for line in reversed(rank.stderr) if line.strip()), "")
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return f"{where} {how}{f': {last}' if last else ''}"
