"""A rank of a job that gets a fault: a process whose error stream is read as it comes."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from warm_python import ENVIRONMENT, executable

LIMIT_S = 30.0
"""Most seconds from the fault being noticeable until every rank has ended or works again."""
TIMEOUT_S = 8.0
"""Time after which a rank that only falls silent is noticed. A busy machine stands still for less."""
PATIENT = "30s"
"""The same in the other cases: a busy machine stands still for seconds at times."""
WORDS = ["--data", "faulty_module:few", "--global-batch", "8", "--epochs", "1000000", "--timeout", PATIENT]
PLAIN = ["--model", "user_module:small_and_idle", *WORDS]
FEATURES = {k: v for k, v in ENVIRONMENT.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
TRAINING = [executable(), "-m", "paceline.training"]
"""Without the words of a run."""


class Rank:
    """A process of a job, whose error stream is read as it comes."""

    def __init__(self, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.lines, self.ended_at = folder, list[str](), 0.0
        folder.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            list(command),
            cwd=folder,
            env={**FEATURES, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._grown = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._grown:
                self.lines.append(line.rstrip())
                self._grown.notify_all()

    def _wait(self) -> None:
        self.process.wait()
        ended_at = time.monotonic()
        self._reader.join(20)  # its last lines; a child that holds its error stream may live on
        with self._grown:
            self.ended_at = ended_at
            self._grown.notify_all()

    def said(self, text: str, within_s: float = 120, after: int = 0) -> bool:
        """Whether a line behind the first ``after`` has the text, now or soon."""
        with self._grown:
            self._grown.wait_for(lambda: self.ended_at or any(text in line for line in self.lines[after:]), within_s)
            return any(text in line for line in self.lines[after:])

    @property
    def pid(self) -> int:
        """The program that the warm Python's client waits for."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (process / "cwd").readlink() == self.folder and int(process.name) != self.process.pid:
                    return int(process.name)
        return self.process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    @property
    def error(self) -> str:
        """Its last line that Paceline has said."""
        return next((line for line in reversed(self.lines) if line.startswith("paceline: ")), "")
