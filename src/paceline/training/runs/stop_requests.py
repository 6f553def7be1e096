"""Requests to stop a run, by a signal to a worker or a message of the launcher. The rank continues to the end of the step."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

STOP_FILE = "PACELINE_STOP_FILE"
"""Variable of a worker that ``paceline train`` has started: a file that appears, with a signal's number, to stop the run, and
``AT_ONCE`` behind it to end it where it is."""
AT_ONCE = "now"
WORKER = ".worker"
"""End of the name of a second file that each worker leaves, with the process's number."""
LOOK_S = 0.1
"""Between two looks for that file."""


class StopRequests:
    """Requests to this worker.

    Attributes:
        number: number of the requesting signal; 0: no request.
        elastic: whether the launcher starts the run again when a rank is lost.
    """

    def __init__(self) -> None:
        self.number, self.elastic = 0, False
        self._training = False
        path = os.environ.get(STOP_FILE)
        if path:
            (Path(path).parent / f"{os.getpid()}{WORKER}").touch()
            threading.Thread(target=self._watch, args=(Path(path),), name="paceline-stop", daemon=True).start()

    @contextmanager
    def while_training(self) -> Iterator[None]:
        """Keep requests in this block for the next boundary of a step. Before the block, when there is nothing to save, they
        end this process, as does a second SIGINT (Ctrl-C) in it.
        """
        usual: Any = signal.SIG_DFL
        defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: usual}
        here = threading.current_thread() is threading.main_thread()
        on_signal = self._on_signal
        if STOP_FILE in os.environ:  # the launcher has Ctrl-C; a batch system's SIGTERM reaches this process too
            del defaults[signal.SIGINT]
            on_signal = self._on_signal_under_launcher
        handled = [number for number, default in defaults.items() if here and signal.getsignal(number) == default]
        self._training = True
        for number in handled:
            signal.signal(number, on_signal)
        try:
            yield
        finally:
            for number in handled:
                signal.signal(number, defaults[number])

    def _on_signal_under_launcher(self, number: int, frame: FrameType | None) -> None:
        if self.elastic:
            return  # a peer was lost: the exchange fails in a moment, and the last step is left behind
        if _has_ended(worker_processes(Path(os.environ[STOP_FILE]))):  # the launcher ends those that are left
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.number = self.number or number

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.number == signal.SIGINT:
            # Not an exception: this thread may be inside of a collective that no peer answers.
            os.write(2, f"paceline: rank {os.environ.get('RANK', '0')}: interrupted twice, ended at once\n".encode())
            os._exit(128 + number)
        self.number = number

    def _watch(self, path: Path) -> None:
        while True:
            time.sleep(LOOK_S)
            try:
                text = path.read_text()
            except OSError:
                continue
            number, _, when = text.partition(" ")
            if not number:  # not written yet
                continue
            if when == AT_ONCE or not self._training:
                sys.stderr.flush()
                os._exit(128 + int(number))
            self.number = int(number)


def worker_processes(stop_file: Path) -> set[int]:
    """Return the processes of the workers that have left a file in the directory of ``stop_file``."""
    return {int(path.stem) for path in stop_file.parent.glob(f"*{WORKER}")}


def _has_ended(processes: Iterable[int]) -> bool:
    """Return whether a process has ended and its parent knows."""
    for process in processes:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
    return False
