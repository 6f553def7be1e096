"""Records of jobs in an executor's folder, by which jobs are found after a crash: ``NAME.json`` and ``NAME.end``.

``NAME.json`` is written before anything starts. The job's script writes ``NAME.end`` when its command has ended.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.errors import UserError
from paceline.rundir import PROGRESS
from paceline.scheduling.executors.executor import NodeDevices, Observed, Phase
from paceline.scheduling.launch import Launch

CHECKPOINT = "checkpoint.pt"
MOST_PROGRESS = 1 << 20
"""Bytes of ``progress.json`` that are read at most."""


@dataclass(frozen=True)
class JobRecord:
    """Record of a submitted job. Either ends the job.

    Attributes:
        placement: devices that it was submitted to.
        since: when it was submitted, in seconds of the epoch.
        handle: identifier of the job in the executor.
        stop_since, stop_by: time of the request to end, and time of the kill; None without a request.
        target: devices that it moves to after its end; None: it does not move.
        before: modification time in ns of a ``progress.json`` older than the first submission; 0: none.
    """

    launch: Launch
    placement: NodeDevices
    since: float
    handle: str = ""
    stop_since: float | None = None
    stop_by: float | None = None
    target: NodeDevices | None = None
    before: int = 0

    @property
    def progress(self) -> dict[str, float]:
        """Numbers that the job has reported since its first submission."""
        return read_progress(self.launch.checkpoint, self.before)

    @property
    def is_late(self) -> bool:
        """True if the job was told to end and its grace period is over."""
        return self.stop_by is not None and time.time() > self.stop_by

    def stopping(self, grace_s: float, target: NodeDevices | None = None) -> JobRecord:
        """Return the record with a request to end now, unless it was requested before."""
        now = time.time()
        if self.stop_since is not None:
            return replace(self, target=target)
        return replace(self, stop_since=now, stop_by=now + grace_s, target=target)


@dataclass(frozen=True)
class CommandEnd:
    """End of a job's command: exit code, whether it had been told to end, the time (seconds of the epoch), and the reason."""

    code: int
    told: bool
    at: float
    reason: str = ""


class Records:
    """Files of an executor's folder. Raises UserError if they cannot be written or read."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).absolute()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make {self.directory}: {error.strerror or error}", "choose another directory") from error

    def path(self, name: str, kind: str) -> Path:
        """Return the path of a file of a job: ``NAME.json``, ``NAME.end``, ``NAME.sh``, ``NAME.log`` or ``NAME.hosts``."""
        return self.directory / f"{name}.{kind}"

    def start(self, launch: Launch, placement: NodeDevices) -> JobRecord:
        """Return a record of a start now, not yet saved. A different job of that name counts as newly submitted."""
        known = self.load(launch.name)
        before = (
            known.before if known is not None and known.launch == launch else _written_ns(Path(launch.checkpoint) / PROGRESS)
        )
        return JobRecord(launch, dict(placement), time.time(), before=before)

    def save(self, record: JobRecord) -> None:
        """Write a record atomically."""
        values = {name: value for name, value in record.__dict__.items() if name != "launch"}
        data = {"job": record.launch.to_json(), **values, "placement": dict(record.placement)}
        self.write(self.path(record.launch.name, "json"), json.dumps(data, indent=1) + "\n")

    def write(self, path: Path, text: str) -> None:
        """Write a file atomically."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise UserError(f"cannot write {path}: {error.strerror or error}", "make room") from error

    def load(self, name: str) -> JobRecord | None:
        """Return the record of a job; None if it has none."""
        path = self.path(name, "json")
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return JobRecord(launch=Launch.from_json(data.pop("job")), **data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, UserError) as error:
            raise UserError(f"{path} cannot be read: {error}", "move it away; Paceline then no longer knows its job") from error

    def known(self, name: str) -> JobRecord:
        """Return the record of a job. Raises UserError if it has none."""
        record = self.load(name)
        if record is None:
            raise UserError(f"job {name} was never submitted", f"see {self.directory} for the jobs that were")
        return record

    def all(self) -> Iterator[JobRecord]:
        """Yield every record, sorted by name."""
        for path in sorted(self.directory.glob("*.json")):
            record = self.load(path.stem)
            if record is not None:
                yield record

    def end(self, name: str) -> CommandEnd | None:
        """Return how the command of a job ended; None if it has not ended by itself."""
        path = self.path(name, "end")
        try:
            words, _, reason = path.read_text().partition("\n")
            told, code = words.split()
            return CommandEnd(int(code), told == "1", path.stat().st_mtime, reason.strip())
        except (OSError, ValueError):
            return None

    def record_end(self, name: str, code: int, told: bool, at_s: float, reason: str = "") -> None:
        """Write how the command of a job ended, where no script of the job can."""
        path = self.path(name, "end")
        self.write(path, f"{int(told)} {code}\n{' '.join(reason.split())}\n")
        os.utime(path, (at_s, at_s))

    def clear_end(self, name: str) -> None:
        """Delete the end of an earlier start."""
        self.path(name, "end").unlink(missing_ok=True)


def read_progress(checkpoint: str, before: int = 0) -> dict[str, float]:
    """Read the numbers of ``progress.json`` in the folder of a checkpoint. Other values are ignored.

    A file whose modification time is ``before`` (ns; 0: none) belongs to an earlier job. Only times of the same file system are
    compared, and only for equality, so clocks need not agree.
    """
    path = Path(checkpoint) / PROGRESS
    if _written_ns(path) in (0, before):
        return {}
    try:
        with path.open("rb") as file:
            return numbers_of(file.read(MOST_PROGRESS))
    except OSError:
        return {}


def numbers_of(text: bytes | str) -> dict[str, float]:
    """Return the finite numbers of a JSON object by name. Other values are ignored."""
    try:
        items = json.loads(text).items()
    except (ValueError, AttributeError, RecursionError):
        return {}
    numbers = {str(name): _finite(value) for name, value in items}
    return {name: value for name, value in numbers.items() if value is not None}


def _written_ns(path: Path) -> int:
    """Return the modification time of a file in ns; 0 if it is missing or not regular, such as a pipe that might block."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return 0
    return found.st_mtime_ns if stat.S_ISREG(found.st_mode) else 0


def _finite(value: object) -> float | None:
    """Return a finite number of JSON; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def ended(
    record: JobRecord,
    end: CommandEnd | None,
    reason: str = "",
    code: int | None = None,
    progress: Mapping[str, float] | None = None,
) -> Observed:
    """Return the state of a job without processes. If ``end`` is None, its script was killed too; ``reason`` has details.

    Args:
        progress: numbers that it reported, if they are not those of ``record``.
    """
    progress = record.progress if progress is None else progress
    told = record.stop_since is not None if end is None else end.told
    code = end.code if end is not None else code
    finished = code == 0 and (record.launch.is_paceline or not told)
    phase: Phase = "done" if finished or record.launch.is_complete(progress) else "stopped" if told else "failed"
    if phase == "failed" and not reason:
        reason = "its processes are gone" if code is None else f"it ended with code {code}"
    return Observed(
        phase=phase,
        placement=record.placement,
        since=end.at if end is not None else record.since,
        code=code,
        progress=progress,
        reason=reason if phase == "failed" else "",
    )


def body(launch: Launch, start: str, end: Path, again: str = "false") -> str:
    """Return lines of a job's bash script: start the command, forward the signal, wait, and record the exit code.

    Args:
        start: line that starts the command, without ``&``.
        again: command whose success means that the job, told to end, restarts at a smaller size.
    """
    variables = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(launch.environment.items()))
    return f"""{variables}cd {shlex.quote(launch.directory)} || exit 1
end={shlex.quote(str(end))}
rm -f "$end"
told=0
trap 'told=1; kill -s {launch.signal} "$child" 2>/dev/null' {launch.signal}
while :; do
  {start} &
  child=$!
  [ "$told" = 1 ] && kill -s {launch.signal} "$child" 2>/dev/null
  while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break
  done
  [ "$told" = 1 ] && {again} || break
  told=0
done
echo "$told $code" > "$end.tmp" && mv "$end.tmp" "$end"
exit "$code"
"""


def words_of_training(launch: Launch) -> list[str]:
    """Return the arguments of ``paceline train`` except the number of workers: the job's words, folder and checkpoint."""
    resume = ["--resume", launch.checkpoint] if (Path(launch.checkpoint) / CHECKPOINT).exists() else []
    return [*launch.command[2:], "--out", launch.checkpoint, *resume]


def text_of(placement: Mapping[str, int]) -> str:
    """Format a placement: ``h0:2 h1:1``."""
    return " ".join(f"{node}:{devices}" for node, devices in placement.items()) or "nothing"
