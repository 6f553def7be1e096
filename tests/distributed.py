"""Run a function as N ranks of one gloo group, each in a process of its own, and return what every rank returned.

A process that has imported torch (``warm_python``) forks the ranks and keeps their store, at a port that the system chooses.
A file as the store would be read from its start by every new connection. A rank that fails ends the others, and the error
shows what every rank printed.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from warm_python import ENVIRONMENT, TESTS, executable

__all__ = [
    "ENVIRONMENT",
    "TESTS",
    "Outcome",
    "can_make_private_network",
    "free_port",
    "launch",
    "launch_and_let_fail",
    "launch_once",
]


class Outcome(NamedTuple):
    """How one rank of ``launch_and_let_fail`` ended.

    Attributes:
        code: 0, 1 for an exception, or the negative number of the signal that ended it.
        seconds: from the first rank's end to this one's.
        said: what it has printed and logged.
    """

    code: int
    seconds: float
    said: str


def launch_and_let_fail(
    function: Callable[..., Any], workers: int, *, timeout: float = 400, tcp: bool = False, **arguments: Any
) -> list[Outcome]:
    """``launch``, but a rank that fails does not end the others. ``tcp``: rank 0 keeps the store, as without torchrun.

    A rank that has stopped itself is ended when all others have.
    """
    with tempfile.TemporaryDirectory() as folder:
        port = free_port() if tcp else 0
        _run(function, workers, Path(folder), timeout, False, {"let_fail": True, "port": port}, arguments)
        ends = json.loads((Path(folder) / "ends.json").read_text())
        said = [(Path(folder) / f"{rank}.log").read_text(errors="replace") for rank in range(workers)]
        first = min(end for _, end in ends)
        return [Outcome(code, end - first, text) for (code, end), text in zip(ends, said, strict=True)]


def launch(
    function: Callable[..., Any], workers: int, *, timeout: float = 400, private_network: bool = False, **arguments: Any
) -> list[Any]:
    """``[function(rank, workers, **arguments) for every rank]``, each in a process of its own.

    Args:
        function: a function of a module's top level; the ranks load its file by itself.
        private_network: run all ranks in a network namespace that only they are in (needs root).
        arguments: anything that JSON holds.

    Raises:
        AssertionError: a rank failed or the time was up.
    """
    with tempfile.TemporaryDirectory() as folder:
        _run(function, workers, Path(folder), timeout, private_network, {}, arguments)
        import torch

        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(workers)]


def _run(
    function: Callable[..., Any], workers: int, where: Path, timeout: float, private_network: bool, more: Any, arguments: Any
) -> None:
    spec = {
        "file": inspect.getsourcefile(function),
        "function": function.__name__,
        "workers": workers,
        "arguments": arguments,
        **more,
    }
    (where / "spec.json").write_text(json.dumps(spec))
    code = _leader(where, private_network, timeout)
    texts = [path.read_text(errors="replace")[-6000:] for path in sorted(where.glob("*log"))]
    assert code == 0, f"{function.__name__} on {workers} ranks: {code}\n" + "\n".join(texts)


def _leader(folder: Path, private_network: bool, timeout: float) -> int | str:
    """The exit code of the ranks in ``folder``, or that the time was up, when all of them have been ended."""
    command = [executable(), __file__, str(folder)]
    if private_network:
        command = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$0" "$@"', *command]
    try:
        return subprocess.run(command, env=ENVIRONMENT, cwd=TESTS, timeout=timeout, check=False).returncode
    except subprocess.TimeoutExpired:
        return f"timeout after {timeout} s"


def launch_once(function: Callable[..., Any], workers: int, **arguments: Any) -> list[Any]:
    """``launch``, but the same call again has the same outcome, so that several tests can look at one run."""
    results, failure = _run_once(function, workers, **arguments)
    assert failure is None, failure
    return results


@functools.cache
def _run_once(function: Callable[..., Any], workers: int, **arguments: Any) -> tuple[list[Any], str | None]:
    try:
        return launch(function, workers, **arguments), None
    except AssertionError as error:
        return [], str(error)


def can_make_private_network() -> bool:
    """Whether this process may make network namespaces and bring their loopback up."""
    try:
        done = subprocess.run(["unshare", "-n", "ip", "link", "set", "lo", "up"], capture_output=True, timeout=100)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _lead(folder: Path) -> NoReturn:
    code = 1
    try:
        _redirect(folder / "log")
        code = _fork_ranks(folder)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(path: Path) -> None:
    """What this process and those that it starts print from here on goes to a file."""
    with path.open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def _fork_ranks(folder: Path) -> int:
    """Fork the ranks and wait for them; the first failure ends the others."""
    import torch.distributed

    spec = json.loads((folder / "spec.json").read_text())
    listening = socket.create_server(("localhost", 0), backlog=64)
    port = listening.getsockname()[1]
    function = _function(spec)  # what its file imports, the ranks need not either
    children: dict[int, int] = {}
    for rank in range(spec["workers"]):
        child = os.fork()
        if child == 0:
            listening.close()
            os._exit(_rank(rank, spec, function, folder, None if spec.get("port") else port))
        children[child] = rank
    # The store has a thread, which may hold a lock that a process forked from here on would wait for: so it starts last.
    store = torch.distributed.TCPStore(
        "localhost", port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    try:
        return _wait_for_all(children, folder) if spec.get("let_fail") else _wait(children)
    finally:
        del store


def _wait(children: dict[int, int]) -> int:
    """Wait for the ranks; the first failure ends the others."""
    failed = 0
    while children:
        child, status = os.wait()
        del children[child]
        if status and not failed:
            failed = 1
            for other in children:
                os.kill(other, signal.SIGKILL)
    return failed


def _wait_for_all(children: dict[int, int], folder: Path) -> int:
    ends: dict[int, tuple[int, float]] = {}
    stopped: set[int] = set()

    def note(child: int, status: int) -> None:
        if os.WIFSTOPPED(status):
            stopped.add(child)
            return
        stopped.discard(child)
        if not os.WIFCONTINUED(status):
            ends[children[child]] = os.waitstatus_to_exitcode(status), time.monotonic()

    while len(ends) < len(children):
        note(*os.waitpid(-1, os.WUNTRACED))
        if len(ends) + len(stopped) == len(children):
            for other in list(stopped):  # each may go on, or have ended, by now
                changed, status = os.waitpid(other, os.WNOHANG | os.WCONTINUED)
                if changed:
                    note(other, status)
                else:
                    os.kill(other, signal.SIGKILL)
    (folder / "ends.json").write_text(json.dumps([ends[rank] for rank in range(len(children))]))
    return 0


def free_port() -> int:
    """A port that nobody listens on, below those that the kernel gives to connections meanwhile."""
    for port in random.SystemRandom().sample(range(10_000, 30_000), 100):
        with socket.socket() as trial, suppress(OSError):
            trial.bind(("localhost", port))
            return port
    raise AssertionError("no free port")


def _function(spec: dict[str, Any]) -> Callable[..., Any]:
    file = Path(spec["file"])
    sys.path.insert(0, str(file.parent))
    found = importlib.util.spec_from_file_location(file.stem, file)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[file.stem] = module
    found.loader.exec_module(module)
    return getattr(module, spec["function"])


def _rank(rank: int, spec: dict[str, Any], function: Callable[..., Any], folder: Path, port: int | None) -> int:
    """Be one rank; ``port``: of the store, None if rank 0 is to keep it."""
    import torch
    import torch.distributed as dist

    workers = spec["workers"]
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(workers)})
    if spec.get("let_fail"):
        _redirect(folder / f"{rank}.log")
    try:
        store = dist.TCPStore("localhost", port or spec["port"], is_master=rank == 0 and port is None, wait_for_workers=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=workers)
        result = function(rank, workers, **spec["arguments"])
        torch.save(result, folder / f"{rank}.pt")
        dist.barrier()
    except BaseException:
        print(f"rank {rank}:\n{traceback.format_exc()}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    _lead(Path(sys.argv[1]))
