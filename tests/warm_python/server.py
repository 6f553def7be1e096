"""The process that has imported torch: for every request it forks, and the child becomes the program that was asked for."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import functools
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import types
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

# ruff: noqa: F401  these so that programs need not
import matplotlib.figure
import networkx
import onnxruntime
import pytest
import sklearn.datasets
import torch._dynamo
import torch._functorch.aot_autograd
import torch.distributed.launcher.api
import torch.distributed.optim
import torch.distributed.run
import torch.onnx._internal.exporter._core
from torch.onnx._internal.exporter import _registration

import paceline.cli
import paceline.reporting.pages.report_page
import paceline.training.runs.worker
from paceline.hardware import probe
from paceline.training.attach import consistency
from paceline.training.runs import calibrate
from processor_budget import LEDGER

ABOVE = 1000  # descriptors that nobody uses


def read_torchlib_once() -> None:
    """Keep what torch reads from the sources of five hundred functions for every export to ONNX."""
    apis = _registration.onnxscript_apis
    apis.get_torchlib_ops = functools.cache(apis.get_torchlib_ops)
    apis.get_torchlib_ops()


def use_huge_pages() -> None:
    """Move what is loaded to huge pages where Linux can: a fork then copies a third of the page tables, and ends sooner."""
    size, collapse = 2 << 20, 25  # MADV_COLLAPSE
    maps, libc = Path("/proc/self/maps"), ctypes.CDLL(None)
    for line in maps.read_text().splitlines() if maps.exists() else ():
        addresses, mode, _, _, inode, *name = line.split()
        start, end = (int(address, 16) for address in addresses.split("-"))
        start, end = -(-start // size) * size, end // size * size
        if mode.startswith("rw") and inode == "0" and name != ["[stack]"] and start < end:
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), collapse)


def serve(listening: socket.socket, command: str) -> list[str]:
    """Fork for every request, until stdin closes. Returns in the forked child: the arguments of its program."""
    gc.freeze()
    events = selectors.DefaultSelector()
    events.register(0, selectors.EVENT_READ)
    events.register(listening, selectors.EVENT_READ)
    programs: dict[int, tuple[int, socket.socket, int]] = {}
    ledgers: dict[int, str | None] = {}  # where a test adds up the processor time of its programs
    while True:
        for key, _ in events.select()[:1]:  # one at a time: what it closes may be opened anew under the same number
            if key.fd == 0:
                os._exit(0)
            elif key.fileobj is listening:
                connection, _ = listening.accept()
                length, files, *_ = socket.recv_fds(connection, 8, 253)
                request = json.loads(connection.makefile("rb").read(int.from_bytes(length, "big")))
                program = os.fork()
                if program == 0:
                    peer = int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)
                    for number in (listening.detach(), connection.detach()):
                        os.close(number)
                    for _, other, ended in set(programs.values()):
                        os.close(other.detach())
                        os.close(ended)
                    events.close()
                    return become(request, files, peer, command)
                for number in files:
                    os.close(number)
                with suppress(OSError):
                    connection.sendall(f"{program}\n".encode())
                ended = os.pidfd_open(program)
                ledgers[program] = request["env"].get(LEDGER)
                for number in (connection.fileno(), ended):
                    programs[number] = program, connection, ended
                    events.register(number, selectors.EVENT_READ)
            elif key.fd in programs:
                program, connection, ended = programs[key.fd]
                if key.fd != ended:  # the client is gone
                    with suppress(ProcessLookupError):  # the number is still its own: nobody has waited for it
                        os.killpg(program, signal.SIGKILL)
                        os.kill(program, signal.SIGKILL)
                _, status, used = os.wait4(program, 0)
                code = os.waitstatus_to_exitcode(status)
                if ledger := ledgers.pop(program, None):  # before its test continues
                    with open(ledger, "a") as lines:  # noqa: PTH123
                        lines.write(f"{used.ru_utime + used.ru_stime}\n")
                for number in (connection.fileno(), ended):
                    events.unregister(number)
                    del programs[number]
                with suppress(OSError), connection:
                    connection.sendall(f"{code}\n".encode())
                os.close(ended)


def become(request: dict[str, Any], files: Sequence[int], peer: int, command: str) -> list[str]:
    """Take over files, namespaces, directory and environment of the client; its arguments."""
    os.setsid()
    enter(peer)
    high = [fcntl.fcntl(number, fcntl.F_DUPFD, ABOVE) for number in files]
    for number in {0, *files}:
        os.close(number)
    for number, wanted in zip(high, request["files"], strict=True):
        os.dup2(number, wanted)
        os.close(number)
    os.environ.clear()
    os.environ.update(request["env"])
    if "MEASURE_BRIEFLY" in os.environ:
        probe.SECONDS, probe.COPY_BYTES, probe.LINK_BYTES = 0.02, 1 << 20, 1 << 18
        calibrate.STEPS, calibrate.ELEMENTS = 4, (1 << 12, 1 << 14)
    os.chdir(request["cwd"])
    sys.executable = command
    os.getppid = functools.partial(parent, peer)
    unbuffered = request["arguments"][0] == "-u"
    open_streams(request["files"], unbuffered or bool(os.environ.get("PYTHONUNBUFFERED")))
    words: list[str] = request["arguments"][unbuffered:]
    sys.path[0] = str(Path.cwd()) if words[0] in ("-c", "-m") else str(Path(words[0]).resolve().parent)
    sys.path[1:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return words


def parent(process: int) -> int:
    """The process that has started the client: its own program's parent; 1 when the client is gone."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 1


def open_streams(files: Sequence[int], unbuffered: bool) -> None:
    """Anew, since a stream remembers whether its file can seek."""
    for number, (name, mode, errors) in enumerate(
        [("stdin", "r", "strict"), ("stdout", "w", "strict"), ("stderr", "w", "backslashreplace")]
    ):
        stream = open(number, mode, encoding="utf-8", errors=errors, closefd=False) if number in files else None  # noqa: SIM115
        if stream and mode == "w":
            stream.reconfigure(write_through=unbuffered, line_buffering=name == "stderr" or stream.isatty())
        setattr(sys, name, stream)


def enter(peer: int) -> None:
    """Into the network of the client; the mounts too, since /sys shows a network."""
    for kind in ("net", "mnt"):
        theirs = Path(f"/proc/{peer}/ns/{kind}")
        if theirs.stat().st_ino != Path(f"/proc/self/ns/{kind}").stat().st_ino:
            with theirs.open() as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                    raise OSError(ctypes.get_errno(), f"cannot enter the {kind} namespace of {peer}")


def run(first: str, *rest: str) -> None:
    """What ``python FIRST REST`` runs."""
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif first == "-m":
        sys.argv = list(rest)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


def finish(code: int) -> NoReturn:
    """End as the interpreter does, but leave the modules to the kernel: to take torch apart costs half a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(ValueError):  # closed
                stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    if hasattr(os, "SCHED_BATCH"):
        # Gloo's threads spin while the thread that holds their lock waits for a core: none takes the core of another early.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    use_huge_pages()
    consistency.code_version()  # each rank that is attached asks for it
    # At the top, as a program is: an error is the program's own, and the interpreter ends as usual.
    read_torchlib_once()
    _program = serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
    _code: object = 0
    try:
        run(*_program)
    except SystemExit as _end:
        _code = _end.code
    except Exception:
        sys.excepthook(*sys.exc_info())
        _code = 1
    if not isinstance(_code, int | None):
        print(_code, file=sys.stderr)
        _code = 1
    finish(_code or 0)
