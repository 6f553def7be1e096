"""Launch of a job: the command, files and signals that only a real run needs, next to the job that policies see."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from paceline.errors import UserError, shorten, unknown
from paceline.scheduling.job import Job
from paceline.training.runs.training_run import TRAINING_SAMPLES

SIGNALS = ("TERM", "HUP", "USR1", "USR2")
"""Signals that may end a job. INT is missing because bash lets background processes ignore it."""
MOST_GRACE_S = 86_400.0
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_SET_BY_EXECUTOR = ("--workers", "--out", "--resume")
_EPOCHS, _BATCH = 10, 64  # defaults of paceline train
_STATED = ("min_devices", "max_devices", "model", "batch", "samples", "duration_s", "weight", "deadline_s")
_OWNERSHIP = ("virtual_cluster", "owner", "device_types")
_CONDITIONS = ("limit_s", "priority", "preemptible", "min_run_s", "topology", "queue", "qos")
"""Fields of ``Job`` that are written where they differ from their defaults. ``grace_s`` is a field of ``Launch``."""
_END = "end of the command"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A job with everything an executor needs to run it.

    Attributes:
        job: the job. It has arrived at 0, so its deadline counts from its arrival.
        command: words of the command. ``paceline train ...`` may be elastic and is given without ``--workers``, ``--out`` and
            ``--resume``, which the executor sets. Any other command is rigid and runs once, on the first node.
        checkpoint: directory of the checkpoint, which all nodes can reach. Numbers of its ``progress.json`` (``step``,
            ``samples_per_s`` ...) are reported. ``paceline train`` writes that file after each epoch, and other jobs may.
        directory: working directory. This path and ``checkpoint`` become absolute.
        environment: variables added to the environment of the job.
        grace_s: seconds between ``signal`` and the kill.
        signal: signal that tells the job to save and end, such as ``TERM``. ``paceline train`` takes TERM only.

    Raises:
        UserError: the job cannot be run.
    """

    job: Job
    command: tuple[str, ...]
    checkpoint: str
    directory: str = "."
    environment: Mapping[str, str] = field(default_factory=dict)
    grace_s: float = 30.0
    signal: str = "TERM"

    @classmethod
    def of(cls, *, name: str, min_devices: int = 1, max_devices: int = 1, **stated: Any) -> Launch:
        """Build a launch from flat values: fields of ``Job`` and of ``Launch`` by their names.

        Raises:
            UserError: as ``Job`` and ``Launch``.
            TypeError: a name that is a field of neither.
        """
        if not 1 <= min_devices <= max_devices:
            raise UserError(
                f"job {shorten(name, 40)}: {min_devices} to {max_devices} devices", "give the smaller number first, from 1 up"
            )
        launched = {each.name: stated.pop(each.name) for each in fields(cls) if each.name in stated}
        job = Job(
            name=name,
            devices=min_devices,
            min_devices=min_devices,
            max_devices=max_devices,
            adapts=frozenset({"devices"} if max_devices > min_devices else ()),
            target=_END,
            **stated,
        )
        return cls(job=job, **launched)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UserError(f"{shorten(self.name)!r} is not a job's name", "use up to 63 letters, digits, . _ and -")
        for path in ("checkpoint", "directory"):
            object.__setattr__(self, path, str(Path(getattr(self, path)).absolute()))
        where = f"job {self.name}"
        if not self.command or not all(isinstance(word, str) and word for word in self.command):
            raise UserError(f"{where} has no command", "give its words, such as paceline train --model lenet5 --data digits")
        if self.signal not in SIGNALS:
            raise unknown("signal", self.signal, SIGNALS)
        if not 0 <= self.grace_s <= MOST_GRACE_S:
            raise UserError(f"{where}: a grace of {self.grace_s:g} s", f"give 0 to {MOST_GRACE_S:g} s")
        if wrong := [name for name in self.environment if not re.fullmatch(r"[A-Za-z_]\w*", name)]:
            raise UserError(f"{where}: {wrong[0]!r} is not the name of a variable", "use letters, digits and _")
        if self.is_paceline:
            self._check_training(where)
        elif self.job.min_devices != self.job.max_devices:
            raise UserError(f"{where} is elastic, and only paceline train can be", "give min_devices = max_devices")
        self._check_stated(where)

    def _check_training(self, where: str) -> None:
        """Raise UserError for a ``paceline train`` command that the executor cannot run."""
        options = [word.partition("=")[0] for word in self.command]
        if reserved := [word for word in _SET_BY_EXECUTOR if word in options]:
            raise UserError(f"{where} gives {reserved[0]}, which the executor sets", "leave it out")
        if self.signal != "TERM":
            raise UserError(f"{where}: paceline train ends with TERM, not {self.signal}", "leave the signal out")
        if not self.sizes:
            batch, least, most = self.global_batch, self.job.min_devices, self.job.max_devices
            raise UserError(f"{where}: a global batch of {batch} does not divide among {least} to {most} devices")

    def _check_stated(self, where: str) -> None:
        """Raise UserError for statements that contradict one another or the command."""
        if self.is_paceline and (stated := [name for name in ("batch", "duration_s") if getattr(self.job, name)]):
            name = stated[0].removesuffix("_s")
            raise UserError(f"{where} states {name}, which its command says", f"leave {name} out")
        if self.job.share != 1:
            raise UserError(f"{where} states a share of {self.job.share:g}", "executors give whole devices; leave it out")
        if self.job.duration_s and self.job.samples:
            raise UserError(f"{where} states samples and a duration", "give one of them")
        if not 0 <= self.job.batch < math.inf:
            raise UserError(f"{where}: batch {self.job.batch:g}", "give a number above 0")
        if self.job.model and not self.is_paceline and not self.job.batch:
            raise UserError(f"{where} states a model and no batch", "give its batch, samples a step over all devices")

    @property
    def name(self) -> str:
        """Name of the job, by which an executor finds it again."""
        return self.job.name

    @property
    def is_paceline(self) -> bool:
        """True for a ``paceline train`` run, which resumes from its checkpoint at any legal size."""
        return self.command[:2] == ("paceline", "train")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of devices that the job can run on, ascending."""
        batch = self.global_batch if self.is_paceline else 0
        return tuple(n for n in range(self.job.min_devices, self.job.max_devices + 1) if batch % n == 0)

    def check_size(self, devices: int) -> None:
        """Raise UserError for a number of devices that the job cannot run on."""
        if devices not in self.sizes:
            raise UserError(f"job {self.name} on {devices} devices", f"it runs on {', '.join(map(str, self.sizes))}")

    def is_complete(self, progress: Mapping[str, float]) -> bool:
        """Return whether a ``paceline train`` run has reached its last epoch, by its ``progress.json``."""
        return self.is_paceline and progress.get("epoch", 0) >= self._option("--epochs", _EPOCHS)

    @property
    def global_batch(self) -> int:
        """Samples per step over all devices; 0 if unknown."""
        return self._option("--global-batch", _BATCH) if self.is_paceline else self.job.batch

    def samples_left(self, progress: Mapping[str, float]) -> float:
        """Samples to the end of the job, by its reports or else by its known work; NaN if unknown."""
        epoch, step, batch = progress.get("epoch", 0.0), progress.get("step", 0.0), self.global_batch
        if self.is_paceline and epoch and step:
            return max(self._option("--epochs", _EPOCHS) - epoch, 0.0) * step / epoch * batch
        total = self.job.samples or self._epochs_of_known_data()
        return max(total - step * batch, 0.0) if total and batch else math.nan

    def _epochs_of_known_data(self) -> float:
        """Return the samples of all epochs of a ``paceline train`` run on a data set of known size; 0 if unknown."""
        if not self.is_paceline or not (samples := TRAINING_SAMPLES.get(self._text("--data").partition(":")[0], 0)):
            return 0.0
        batch = self.global_batch
        return float(self._option("--epochs", _EPOCHS) * (samples // batch) * batch)  # the incomplete last batch is dropped

    def signal_number(self) -> int:
        """Number of ``signal``."""
        return signal.Signals[f"SIG{self.signal}"].value

    def _option(self, name: str, default: int) -> int:
        text = self._text(name)
        try:
            return int(text) if text else default
        except ValueError:
            raise UserError(f"job {self.name}: {name} {text}", "give a whole number") from None

    def _text(self, name: str) -> str:
        """Return the value of an option of the command; empty if the option is missing."""
        for word, following in zip(self.command, (*self.command[1:], ""), strict=True):
            if word == name or word.startswith(f"{name}="):
                return following if word == name else word.removeprefix(f"{name}=")
        return ""

    def to_json(self) -> dict[str, Any]:
        """Convert to flat plain data, as ``of`` takes it."""
        job = {name: getattr(self.job, name) for name in ("name", *_STATED, *_OWNERSHIP)}
        usual = {each.name: each.default for each in fields(Job)}
        job |= {name: value for name in _CONDITIONS if (value := getattr(self.job, name)) != usual[name]}
        launched = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "job"}
        lists = {"command": list(self.command), "device_types": list(self.job.device_types)}
        return {**job, **launched, **lists, "environment": dict(self.environment)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Launch:
        """Read a dict of ``to_json``. Raises UserError or TypeError for anything else."""
        return cls.of(**{**data, "command": tuple(data["command"]), "device_types": tuple(data.get("device_types", ()))})
