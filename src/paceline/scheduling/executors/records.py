"""What an executor keeps of a job in its directory, so that it is found again after a crash: ``NAME.json`` and ``NAME.end``.

``NAME.json`` is written before anything is started. ``NAME.end`` is written by the job's own script when its command has ended.
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
"""Bytes of a ``progress.json`` that is read."""


@dataclass(frozen=True)
class JobRecord:
    """A job that was submitted.

    ``handle`` is the executor's own name for it. ``stop_since`` is when it was told to end, ``stop_by`` when it is killed, in
    seconds of the epoch; ``target`` is where it goes after that, if anywhere. ``before``: when the ``progress.json`` was
    written that lay there before the job was submitted for the first time, as its file system says, in ns; 0: none did.
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
        """What the job has reported since it was submitted for the first time."""
        return read_progress(self.launch.checkpoint, self.before)

    @property
    def is_late(self) -> bool:
        """Whether it was told to end and its grace is over."""
        return self.stop_by is not None and time.time() > self.stop_by

    def stopping(self, grace_s: float, target: NodeDevices | None = None) -> JobRecord:
        """The same, told to end now, unless it was already."""
        now = time.time()
        if self.stop_since is not None:
            return replace(self, target=target)
        return replace(self, stop_since=now, stop_by=now + grace_s, target=target)


@dataclass(frozen=True)
class CommandEnd:
    """How a job's command ended: exit code, whether it had been told to, and when (seconds of the epoch)."""

    code: int
    told: bool
    at: float


class Records:
    """The files of a directory. Raises UserError where they cannot be written or read."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).absolute()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make {self.directory}: {error.strerror or error}", "choose another directory") from error

    def path(self, name: str, kind: str) -> Path:
        """``NAME.json``, ``NAME.end``, ``NAME.sh``, ``NAME.log``, ``NAME.hosts``."""
        return self.directory / f"{name}.{kind}"

    def start(self, launch: Launch, placement: NodeDevices) -> JobRecord:
        """The record of a start now, not yet saved. Another job of that name counts as submitted for the first time."""
        known = self.load(launch.name)
        before = (
            known.before if known is not None and known.launch == launch else _written_ns(Path(launch.checkpoint) / PROGRESS)
        )
        return JobRecord(launch, dict(placement), time.time(), before=before)

    def save(self, record: JobRecord) -> None:
        """Write a record, whole or not at all."""
        values = {name: value for name, value in record.__dict__.items() if name != "launch"}
        data = {"job": record.launch.to_json(), **values, "placement": dict(record.placement)}
        self.write(self.path(record.launch.name, "json"), json.dumps(data, indent=1) + "\n")

    def write(self, path: Path, text: str) -> None:
        """Write a file, whole or not at all."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise UserError(f"cannot write {path}: {error.strerror or error}", "make room") from error

    def load(self, name: str) -> JobRecord | None:
        """The record of a job, or None."""
        path = self.path(name, "json")
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return JobRecord(launch=Launch.from_json(data.pop("job")), **data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, UserError) as error:
            raise UserError(f"{path} cannot be read: {error}", "move it away; Paceline then no longer knows its job") from error

    def known(self, name: str) -> JobRecord:
        """The record of a job. Raises UserError where there is none."""
        record = self.load(name)
        if record is None:
            raise UserError(f"job {name} was never submitted", f"see {self.directory} for the jobs that were")
        return record

    def all(self) -> Iterator[JobRecord]:
        """Every record, by name."""
        for path in sorted(self.directory.glob("*.json")):
            record = self.load(path.stem)
            if record is not None:
                yield record

    def end(self, name: str) -> CommandEnd | None:
        """How the job's command ended, as its script wrote; None where it did not."""
        path = self.path(name, "end")
        try:
            told, code = path.read_text().split()
            return CommandEnd(int(code), told == "1", path.stat().st_mtime)
        except (OSError, ValueError):
            return None

    def clear_end(self, name: str) -> None:
        """Forget how an earlier start ended."""
        self.path(name, "end").unlink(missing_ok=True)


def read_progress(checkpoint: str, before: int = 0) -> dict[str, float]:
    """The numbers of ``progress.json`` in a checkpoint's directory; what else it holds is left out.

    A file that was written at ``before`` (ns, 0: never) says nothing of this job. The file system's own times are compared, and
    only whether they are the same: no other clock need agree with it.
    """
    path = Path(checkpoint) / PROGRESS
    if _written_ns(path) in (0, before):
        return {}
    try:
        with path.open("rb") as file:
            items = json.loads(file.read(MOST_PROGRESS)).items()
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
    numbers = {str(name): _finite(value) for name, value in items}
    return {name: value for name, value in numbers.items() if value is not None}


def _written_ns(path: Path) -> int:
    """When a file was written; 0 where there is none, or something else that may not end, such as a pipe."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return 0
    return found.st_mtime_ns if stat.S_ISREG(found.st_mode) else 0


def _finite(value: object) -> float | None:
    """A number of JSON; None for anything else, and for one that no finite float is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def ended(record: JobRecord, end: CommandEnd | None, reason: str = "", code: int | None = None) -> Observed:
    """A job whose processes are gone. Without ``end`` something killed its script too; ``reason`` says what is known of it."""
    progress = record.progress
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
    """The lines of a job's script, in bash: start, pass its signal on, wait, and write how it ended.

    Args:
        start: the line that starts the command, without ``&``.
        again: a command that says whether, having been told to end, it starts once more at a smaller size.
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
    """What a Paceline run takes besides its number of workers: its own words, and its checkpoint to write and to go on from."""
    resume = ["--resume", launch.checkpoint] if (Path(launch.checkpoint) / CHECKPOINT).exists() else []
    return [*launch.command[2:], "--out", launch.checkpoint, *resume]


def text_of(placement: Mapping[str, int]) -> str:
    """A placement in words: ``h0:2 h1:1``."""
    return " ".join(f"{node}:{devices}" for node, devices in placement.items()) or "nothing"
