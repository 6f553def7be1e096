"""What runs jobs for real: the protocol, and the values that cross it. A policy never knows which executor it is."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from paceline.errors import UserError, shorten, unknown
from paceline.training.runs.training_run import TRAINING_SAMPLES

NodeDevices = Mapping[str, int]
"""Devices of a job on each node, by the node's name."""
Phase = Literal["waiting", "running", "stopping", "stopped", "done", "failed"]
"""``waiting``: submitted, not started. ``stopping``: told to save and end. ``stopped``: has done so, and can go on later."""
PHASES: tuple[Phase, ...] = get_args(Phase)
SIGNALS = ("TERM", "HUP", "USR1", "USR2")
"""Not INT: bash lets what it starts in the background ignore it."""
MOST_GRACE_S = 86_400.0
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_OWN = ("--workers", "--out", "--resume")
_EPOCHS, _BATCH = 10, 64  # what paceline train takes where a command does not say


class Unavailable(RuntimeError):
    """The executor does not answer now, as while slurmctld is started anew; ask again. Nothing of what was asked is certain."""


@dataclass(frozen=True, kw_only=True)
class LiveJob:
    """A job to run.

    Attributes:
        name: by which an executor finds it again; unique among the jobs of an executor.
        command: its words. ``paceline train ...`` may be elastic; it is given without ``--workers``, ``--out`` and
            ``--resume``, which the executor sets. Anything else is rigid, and runs once, on the first node.
        checkpoint: directory of its checkpoint, which all nodes can reach. Also of ``progress.json``, whose numbers (``step``,
            ``samples_per_s`` ...) are reported; ``paceline train`` writes it after each epoch, and any other job may.
        directory: the working directory; this and ``checkpoint`` are made absolute.
        min_devices, max_devices: equal for a rigid job.
        grace_s: seconds between ``signal`` and its being killed.
        signal: ``TERM``, ``USR1`` ...: what tells it to save and end. ``paceline train`` takes TERM.
        model: a network that ``predict`` takes, for a command that does not say it; ``batch``: its samples a step, over all
            devices, and ``samples``: the work in all; 0: unknown.
        duration_s: on its devices, of a rigid job; 0: unknown.
        weight, virtual_cluster, owner, device_types: as of ``Job``. ``deadline_s``: after its arrival; infinite: none.

    Raises:
        UserError: for what cannot be run.
    """

    name: str
    command: tuple[str, ...]
    checkpoint: str
    directory: str = "."
    environment: Mapping[str, str] = field(default_factory=dict)
    min_devices: int = 1
    max_devices: int = 1
    grace_s: float = 30.0
    signal: str = "TERM"
    model: str = ""
    batch: int = 0
    samples: float = 0.0
    duration_s: float = 0.0
    weight: float = 1.0
    deadline_s: float = math.inf
    virtual_cluster: str = ""
    owner: str = ""
    device_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UserError(f"{shorten(self.name)!r} is not a job's name", "use up to 63 letters, digits, . _ and -")
        for path in ("checkpoint", "directory"):
            object.__setattr__(self, path, str(Path(getattr(self, path)).absolute()))
        where = f"job {self.name}"
        if not self.command or not all(isinstance(word, str) and word for word in self.command):
            raise UserError(f"{where} has no command", "give its words, such as paceline train --model lenet5 --data digits")
        if not 1 <= self.min_devices <= self.max_devices:
            raise UserError(f"{where}: {self.min_devices} to {self.max_devices} devices", "give the smaller first")
        if self.signal not in SIGNALS:
            raise unknown("signal", self.signal, SIGNALS)
        if not 0 <= self.grace_s <= MOST_GRACE_S:
            raise UserError(f"{where}: a grace of {self.grace_s:g} s", f"give 0 to {MOST_GRACE_S:g} s")
        if wrong := [name for name in self.environment if not re.fullmatch(r"[A-Za-z_]\w*", name)]:
            raise UserError(f"{where}: {wrong[0]!r} is not the name of a variable", "use letters, digits and _")
        if self.is_paceline:
            self._check_training(where)
        elif self.min_devices != self.max_devices:
            raise UserError(f"{where} is elastic, and only paceline train can be", "give min_devices = max_devices")
        self._check_stated(where)

    def _check_training(self, where: str) -> None:
        given = [word.partition("=")[0] for word in self.command]
        if own := [word for word in _OWN if word in given]:
            raise UserError(f"{where} gives {own[0]}, which the executor sets", "leave it out")
        if self.signal != "TERM":
            raise UserError(f"{where}: paceline train ends with TERM, not {self.signal}", "leave the signal out")
        if not self.sizes:
            batch, most = self._option("--global-batch", _BATCH), self.max_devices
            raise UserError(f"{where}: a global batch of {batch} does not divide among {self.min_devices} to {most} devices")

    def _check_stated(self, where: str) -> None:
        """Refuse statements that cannot be, or that contradict the command."""
        if self.is_paceline and (stated := [name for name in ("batch", "duration_s") if getattr(self, name)]):
            name = stated[0].removesuffix("_s")
            raise UserError(f"{where} states {name}, which its command says", f"leave {name} out")
        if self.duration_s and self.samples:
            raise UserError(f"{where} states samples and a duration", "give one of them")
        if self.model and not self.is_paceline and not self.batch:
            raise UserError(f"{where} states a model and no batch", "give its batch, samples a step over all devices")
        for value, name, least in ((self.batch, "batch", 0), (self.samples, "samples", 0), (self.duration_s, "duration", 0)):
            if not least <= value < math.inf:
                raise UserError(f"{where}: {name} {value:g}", "give a number above 0")
        if not 0 < self.weight < math.inf:
            raise UserError(f"{where}: weight {self.weight:g}", "give a number above 0")
        if not self.deadline_s > 0:
            raise UserError(f"{where}: a deadline of {self.deadline_s:g} s", "give a time after its arrival, such as 2h")

    @property
    def is_paceline(self) -> bool:
        """Whether it is a run of ``paceline train``: it starts from its checkpoint by itself, at any legal size."""
        return self.command[:2] == ("paceline", "train")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of devices that it can run on, rising."""
        batch = self._option("--global-batch", _BATCH) if self.is_paceline else 0
        return tuple(n for n in range(self.min_devices, self.max_devices + 1) if batch % n == 0)

    def check_size(self, devices: int) -> None:
        """Raises UserError for a number of devices that the job cannot run on."""
        if devices not in self.sizes:
            raise UserError(f"job {self.name} on {devices} devices", f"it runs on {', '.join(map(str, self.sizes))}")

    def is_complete(self, progress: Mapping[str, float]) -> bool:
        """Whether a Paceline run has reached its last epoch, as its ``progress.json`` says."""
        return self.is_paceline and progress.get("epoch", 0) >= self._option("--epochs", _EPOCHS)

    @property
    def global_batch(self) -> int:
        """Samples a step over all devices; 0: unknown."""
        return self._option("--global-batch", _BATCH) if self.is_paceline else self.batch

    def samples_left(self, progress: Mapping[str, float]) -> float:
        """Samples to its end: from its reports, else of what is known to be its work; NaN: nobody knows."""
        epoch, step, batch = progress.get("epoch", 0.0), progress.get("step", 0.0), self.global_batch
        if self.is_paceline and epoch and step:
            return max(self._option("--epochs", _EPOCHS) - epoch, 0.0) * step / epoch * batch
        total = self.samples or self._epochs_of_known_data()
        return max(total - step * batch, 0.0) if total and batch else math.nan

    def _epochs_of_known_data(self) -> float:
        """Samples of all epochs of a Paceline run on a data set whose size is known; 0: unknown."""
        if not self.is_paceline or not (samples := TRAINING_SAMPLES.get(self._text("--data").partition(":")[0], 0)):
            return 0.0
        batch = self.global_batch
        return float(self._option("--epochs", _EPOCHS) * (samples // batch) * batch)  # the last part of a batch is dropped

    def signal_number(self) -> int:
        """The number of ``signal``."""
        return signal.Signals[f"SIG{self.signal}"].value

    def _option(self, name: str, default: int) -> int:
        text = self._text(name)
        try:
            return int(text) if text else default
        except ValueError:
            raise UserError(f"job {self.name}: {name} {text}", "give a whole number") from None

    def _text(self, name: str) -> str:
        """The value of an option of its command; empty: it is not there."""
        for word, following in zip(self.command, (*self.command[1:], ""), strict=True):
            if word == name or word.startswith(f"{name}="):
                return following if word == name else word.removeprefix(f"{name}=")
        return ""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        lists = {name: list(getattr(self, name)) for name in ("command", "device_types")}
        return {**asdict(self), **lists, "environment": dict(self.environment)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LiveJob:
        """The inverse of ``to_json``. Raises UserError or TypeError for anything else."""
        return cls(**{**data, "command": tuple(data["command"]), "device_types": tuple(data.get("device_types", ()))})


@dataclass(frozen=True, kw_only=True)
class Observed:
    """A job as its executor sees it.

    Attributes:
        placement: where it runs, or has been asked to; ``target``: where it is being moved to, if it is.
        since: seconds of the epoch at which it came into its phase.
        code: its exit code, where it has ended and that is known.
        progress: numbers that it has reported: ``step``, ``samples_per_s``, ``epoch``, ``accuracy`` ...
        reason: in words: why it waits or failed.
    """

    phase: Phase
    placement: NodeDevices
    since: float
    target: NodeDevices | None = None
    code: int | None = None
    progress: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    @property
    def holds_devices(self) -> bool:
        """Whether its devices are not free for others."""
        return self.phase in ("waiting", "running", "stopping")


class Executor(Protocol):
    """Runs jobs. Every method may raise Unavailable, after which nothing is certain, and UserError for what cannot be.

    An executor keeps what it must know in a directory, so that another one with the same directory goes on after a crash.
    Nobody else may use that directory at the same time; :class:`paceline.scheduling.live.journal.Journal` sees to it.
    """

    def submit(self, job: LiveJob, placement: NodeDevices) -> None:
        """Start the job there, from its checkpoint where it has one. One that is submitted already is left as it is."""

    def resize(self, name: str, placement: NodeDevices) -> None:
        """Begin to move a job: it saves, ends, and is started at the new size by a later ``poll``."""

    def stop(self, name: str, grace_s: float) -> None:
        """Tell a job to save and end. It is killed by a ``poll`` after ``grace_s`` seconds."""

    def poll(self) -> Mapping[str, Observed]:
        """Every job that was ever submitted, as it is now. Also does what stops and moves under way have come to."""

    def nodes(self) -> Sequence[tuple[str, int]]:
        """The nodes that can run jobs now, with their devices, free or not."""


def check_fits(job: LiveJob, placement: NodeDevices, nodes: Sequence[tuple[str, int]]) -> None:
    """Raises UserError where the placement is no size of the job, or names a node or more devices than there are."""
    sizes = dict(nodes)
    for node, devices in placement.items():
        if node not in sizes:
            raise unknown("node", node, sizes)
        if not 1 <= devices <= sizes[node]:
            raise UserError(f"{devices} devices of node {node}", f"it has {sizes[node]}")
    job.check_size(sum(placement.values()))
