"""Switch of a lab that adds gradients, a process in the switch's namespace during a run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from paceline.lab.kernel import MARK

VARIABLE = "PACELINE_SWITCH"
"""``address:port``, for every rank, of the store where it meets the switch."""
_SERVER = "paceline.training.exchanges.wires.switch_server"


@contextmanager
def adding_switch(
    enter: tuple[str, ...], address: str, port: int, lab: str, env: Mapping[str, str]
) -> Iterator[tuple[Mapping[str, str], Callable[[], bool]]]:
    """Run the switch. Yields the environment of the ranks (``env`` and the switch's address) and whether the switch works.

    Args:
        enter: command prefix that enters the switch's namespace.
        address, port: address and port of the store that the switch serves.
        lab: whose mark the process bears, so that ``lab down`` ends it whatever happens here.
        env: set in addition to this process's own.
    """
    command = [*enter, sys.executable, "-m", _SERVER, address, str(port)]
    own = {**os.environ, "OMP_NUM_THREADS": "1", **env, MARK: lab}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=own, start_new_session=True)
    try:
        yield {**env, VARIABLE: f"{address}:{port}"}, lambda: process.poll() is None
    finally:
        process.kill()
        process.wait()
