"""Journal of a lab: a small JSON file that lists each resource before it is created.

After a crash, exactly the listed resources may be removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.lab.kernel import boot_id
from paceline.lab.topology import PREFIX, Topology, check_name

SCHEMA = 1
DIRECTORY = "PACELINE_RUNTIME_DIR"
SYSTEM = Path("/run/paceline")
LOCK_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class LabState:
    """State of a lab, as stored in its file.

    ``namespaces`` maps every name that the lab may create to its inode, None until it exists; ``phase`` is ``building`` or
    ``up``; ``since`` is seconds of the epoch; ``pid`` and ``boot`` are of who made it.
    """

    topology: Topology
    phase: str
    namespaces: dict[str, int | None]
    pid: int = field(default_factory=os.getpid)
    boot: str = field(default_factory=boot_id)
    since: float = field(default_factory=time.time)

    @property
    def stale(self) -> bool:
        """True if the machine was restarted since the lab was made. Nothing of the lab exists then."""
        return self.boot != boot_id()

    def created(self, name: str, inode: int) -> LabState:
        """Return the state with one more namespace created."""
        return replace(self, namespaces={**self.namespaces, name: inode})

    def save(self) -> None:
        """Write the file atomically. Raises UserError."""
        path = _path(_own_directory(), self.topology.name)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n")
            temporary.replace(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise UserError(f"cannot write {path}: {error.strerror or error}", f"make room, or set {DIRECTORY}") from error

    def delete(self) -> None:
        """Remove the file and the directories of the lab's Slurm and cards. Raises UserError if another user owns them."""
        for directory in _directories():
            path = _path(directory, self.topology.name)
            try:
                for part in (_slurm(directory, self.topology.name), _cards(directory, self.topology.name)):
                    if part.is_dir():
                        shutil.rmtree(part)
                path.unlink(missing_ok=True)
            except OSError as error:
                raise UserError(f"cannot remove {path}: {error.strerror or error}", "run it as its owner, with sudo") from error


def load(name: str) -> LabState | None:
    """Return the state of a lab, or None without a file. Raises UserError for a file that cannot be read."""
    check_name(name)
    for directory in _directories():
        path = _path(directory, name)
        try:
            return _from_json(json.loads(path.read_text(encoding="utf-8")), name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"{path} cannot be read: {error}", "move it away; ip netns list shows the remaining namespaces"
            ) from error
    return None


def slurm_directory(name: str) -> Path:
    """Return the directory of the Slurm of this user's lab. Raises UserError if no directory can be made for labs."""
    return _slurm(_own_directory(), name)


def card_directory(name: str) -> Path:
    """Return the directory of the counters of this user's cards. Raises UserError if no directory can be made for labs."""
    return _cards(_own_directory(), name)


def names() -> list[str]:
    """Return the names of all labs that have a file, sorted."""
    files = [path.name for directory in _directories() if directory.is_dir() for path in directory.glob("lab-*.json")]
    return sorted({name.removeprefix("lab-").removesuffix(".json") for name in files})


@contextmanager
def locked() -> Iterator[None]:
    """Hold a lock against any other ``up`` and ``down``. The kernel releases it if the process dies. Raises UserError."""
    handle = os.open(_own_directory(), os.O_RDONLY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise UserError("another paceline lab up or down is still at work", "wait for it") from None
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)


def _directories() -> list[Path]:
    """Return the directories of labs: the configured one, else the system's (which sudo sees too), then the user's."""
    if chosen := os.environ.get(DIRECTORY):
        return [Path(chosen)]
    if os.geteuid() == 0:
        return [SYSTEM]
    session = os.environ.get("XDG_RUNTIME_DIR")
    of_user = Path(session) / "paceline" if session else Path(tempfile.gettempdir()) / f"paceline-{os.getuid()}"
    return [SYSTEM, of_user]


def _own_directory() -> Path:
    """Return the directory for this user's labs. Raises UserError if it is another user's or cannot be made."""
    path = _directories()[-1]
    try:
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
        if path.is_symlink() or path.stat().st_uid != os.geteuid():
            raise UserError(f"{path} belongs to another user", f"set {DIRECTORY} to a directory of your own")
    except OSError as error:
        raise UserError(f"cannot make {path}: {error.strerror or error}", f"set {DIRECTORY}") from error
    return path


def _path(directory: Path, name: str) -> Path:
    return directory / f"lab-{name}.json"


def _slurm(directory: Path, name: str) -> Path:
    return directory / f"slurm-{name}"


def _cards(directory: Path, name: str) -> Path:
    return directory / f"nic-{name}"


def _from_json(data: dict[str, Any], name: str) -> LabState:
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']}, not {SCHEMA}")
    topology = Topology(**data["topology" if "topology" in data else "plan"])  # a lab that 0.1 left up
    namespaces = dict(data["namespaces"])
    if topology.name != name or not set(namespaces) <= set(topology.namespaces):
        raise ValueError("it lists what this lab does not create")
    assert all(entry.startswith(PREFIX) for entry in namespaces)
    return LabState(topology, str(data["phase"]), namespaces, int(data["pid"]), str(data["boot"]), float(data["since"]))
