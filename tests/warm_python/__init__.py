"""A Python that has imported torch already: a program of a test starts in milliseconds.

``executable()`` is a command that takes the arguments of ``python``. It hands them to one process of this test session, with
its files, directory, environment and network, and that process forks. Programs that Paceline starts from there are warm too.
What depends on a fresh start stays with ``sys.executable``: imports, variables that a library reads while it loads, the tree
of processes. With ``ENVIRONMENT`` they measure this machine briefly, since how fast it is is not asked.
"""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[1]
CLIENT, SERVER = (Path(__file__).parent / name for name in ("client.py", "server.py"))
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS), os.environ.get("PYTHONPATH", "")]),
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "MEASURE_BRIEFLY": "1",
}


SHARED = "PACELINE_WARM_PYTHON"
"""The command of the process that began the session, for the workers of ``pytest -n``."""


@functools.cache
def executable() -> str:
    """The command. Its process starts with the first call and ends with this one."""
    return os.environ.get(SHARED) or start()


def start() -> str:
    """A command of its own, at once; who calls it waits until torch is imported."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    command = folder / "python"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{CLIENT}" "{folder}/socket" "$@"\n')
    command.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/socket")
        listening.listen(64)
        server = subprocess.Popen(
            [sys.executable, str(SERVER), str(listening.fileno()), str(command)],
            stdin=subprocess.PIPE,  # closes when this process ends
            stdout=subprocess.DEVNULL,
            env=ENVIRONMENT,
            cwd=TESTS,
            pass_fds=[listening.fileno()],
            start_new_session=True,
        )
    _servers.append(server)
    return str(command)


_servers: list[subprocess.Popen[bytes]] = []  # a Popen that nobody holds closes its pipe
