"""Executor of jobs as processes of this machine, on Linux. Nodes are names with slots, and all share the cores of the machine.

Each job is a script in a separate session. Its processes carry an environment variable with the path of the job's record, by
which they are found after a restart.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from paceline.errors import UserError
from paceline.scheduling.executors.executor import NodeDevices, Observed, check_fits
from paceline.scheduling.executors.records import JobRecord, Records, body, ended, words_of_training
from paceline.scheduling.launch import Launch

NODE = "localhost"
MARK = "PACELINE_JOB"
"""Environment variable of every process of a job: path of its record."""


class LocalExecutor:
    """Executor of jobs on this machine.

    Args:
        directory: folder of records, scripts and logs (``NAME.log``).
        nodes: slots by node; a number means one node, ``localhost``.
        python: interpreter for ``paceline train``.

    Raises:
        UserError: a folder that cannot be written, no slots, or a system other than Linux.
    """

    def __init__(self, directory: str | Path, nodes: int | Mapping[str, int], python: str = sys.executable) -> None:
        if sys.platform != "linux":
            raise UserError("the local executor finds its jobs in /proc, which only Linux has", "use Slurm")
        self._nodes = {NODE: nodes} if isinstance(nodes, int) else dict(nodes)
        if not self._nodes or min(self._nodes.values()) < 1:
            raise UserError(f"{nodes} slots", "give each node at least one")
        self._records, self._python = Records(directory), python

    def nodes(self) -> Sequence[tuple[str, int]]:
        """Return every node with its slots."""
        return tuple(self._nodes.items())

    def submit(self, launch: Launch, placement: NodeDevices) -> None:
        """Start the job. Raises UserError for a placement that exceeds the free slots."""
        if self._sessions().get(launch.name):
            return
        check_fits(launch, placement, self.nodes())
        self._check_free(launch, placement)
        self._start(self._records.start(launch, placement))

    def resize(self, name: str, placement: NodeDevices) -> None:
        """Stop the job; a later ``poll`` starts it at the new size. Raises UserError for an impossible placement."""
        record = self._records.known(name)
        check_fits(record.launch, placement, self.nodes())
        self._signal_once(record.stopping(record.launch.grace_s, dict(placement)))
        self.poll()

    def stop(self, name: str, grace_s: float) -> None:
        """Send the job its signal; a later ``poll`` kills it after ``grace_s`` seconds. Raises UserError for an unknown job."""
        self._signal_once(self._records.known(name).stopping(grace_s))

    def poll(self) -> Mapping[str, Observed]:
        """Return the present state of every job."""
        sessions = self._sessions()
        return {record.launch.name: self._state(record, sessions.get(record.launch.name, [])) for record in self._records.all()}

    def _state(self, record: JobRecord, session: list[int]) -> Observed:
        name = record.launch.name
        if not session:
            seen = ended(record, self._records.end(name))
            if record.target is None or seen.phase == "done":
                return seen
            fresh = self._records.start(record.launch, record.target)
            try:
                self._check_free(record.launch, record.target)
            except UserError:  # another job has not freed its slots yet
                return replace(seen, phase="waiting", placement=record.target)
            self._start(fresh)
            record = fresh
        elif record.is_late or self._records.end(name) is not None:  # its script has ended, but not its children
            for pid in session:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(os.getpgid(pid), signal.SIGKILL)
        told = record.stop_since is not None
        return Observed(
            phase="stopping" if told else "running",
            placement=record.placement,
            target=record.target,
            since=record.stop_since or record.since,
            progress=record.progress,
        )

    def _start(self, record: JobRecord) -> None:
        launch, devices = record.launch, sum(record.placement.values())
        words = list(launch.command)
        if launch.is_paceline:
            words = [self._python, "-m", "paceline", "train", *words_of_training(launch), "--workers", str(devices)]
        script = self._records.path(launch.name, "sh")
        self._records.write(script, "#!/bin/bash\n" + body(launch, shlex.join(words), self._records.path(launch.name, "end")))
        self._records.clear_end(launch.name)
        self._records.save(record)  # before the start, so that its processes can always be found
        environment = {**os.environ, MARK: str(self._records.path(launch.name, "json")), "PACELINE_DEVICES": str(devices)}
        with self._records.path(launch.name, "log").open("ab") as log:
            try:
                process = subprocess.Popen(
                    ["/bin/bash", str(script)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise UserError(f"cannot start bash: {error.strerror or error}") from error
        while process.poll() is None and not _variables(process.pid):  # a new program shows none yet
            time.sleep(0.001)
        self._records.save(replace(record, handle=str(process.pid)))
        _CHILDREN.append(process)

    def _signal_once(self, record: JobRecord) -> None:
        """Save the record, then send the signal to the job's script once."""
        before = self._records.known(record.launch.name)
        self._records.save(record)
        if before.stop_since is None:
            for pid in self._sessions().get(record.launch.name, []):
                with suppress(ProcessLookupError):
                    if os.getsid(pid) == pid:
                        os.kill(pid, record.launch.signal_number())

    def _check_free(self, launch: Launch, placement: NodeDevices) -> None:
        sessions = self._sessions()
        held = [r.placement for r in self._records.all() if r.launch.name in sessions and r.launch.name != launch.name]
        for node, devices in placement.items():
            free = self._nodes[node] - sum(other.get(node, 0) for other in held)
            if devices > free:
                raise UserError(f"job {launch.name}: {devices} slots of {node}", f"{free} are free")

    def _sessions(self) -> dict[str, list[int]]:
        """Return the running processes by job name."""
        _CHILDREN[:] = [child for child in _CHILDREN if child.poll() is None]
        sessions: dict[str, list[int]] = {}
        for pid, path in _marked():
            if path.parent == self._records.directory:
                sessions.setdefault(path.stem, []).append(pid)
        return sessions


_CHILDREN: list[subprocess.Popen[bytes]] = []
"""Scripts started by this process, reaped at each look at the processes."""


def _marked() -> Iterator[tuple[int, Path]]:
    """Yield every process with the mark, and the path of its record."""
    key = f"{MARK}=".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        for variable in _variables(int(entry.name)).split(b"\0"):
            if variable.startswith(key):
                yield int(entry.name), Path(os.fsdecode(variable.removeprefix(key)))


def _variables(pid: int) -> bytes:
    """Return the environment of a process; empty if it has ended or belongs to another user."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
