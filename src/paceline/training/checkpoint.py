"""Checkpoints: one file a run, written whole or not at all, read without running code from it.

The file is a zip archive, as ``torch.save`` writes it, and carries a checksum of each of its records (CRC-32).
"""

from __future__ import annotations

import os
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from paceline.errors import UserError, shorten
from paceline.rundir import unwritable
from paceline.training.training_run import TrainingRun

FILE = "checkpoint.pt"
_SCHEMA = 1


def save(directory: Path, run: TrainingRun, epoch: int, state: dict[str, Any]) -> None:
    """Write ``state`` (weights, optimizer, hook, curve) as the checkpoint after ``epoch`` epochs.

    Raises:
        UserError: the disk does not take it; the checkpoint of before is left as it is.
    """
    path = directory / FILE
    temporary = directory / f".{FILE}.tmp"  # one name: what an ended run has left is written over
    checksums = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(True)
    try:
        with temporary.open("wb") as file:
            torch.save({"schema": _SCHEMA, "job": run.to_json(), "epoch": epoch, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        cause = error if isinstance(error, OSError) else error.__context__  # torch's archive writer hides the disk's error
        if not isinstance(cause, OSError):
            raise
        raise unwritable(path, cause) from error
    finally:
        torch.serialization.set_crc32_options(checksums)


def load(directory: Path) -> dict[str, Any]:
    """The checkpoint in ``directory``, with its ``TrainingRun`` as ``run``.

    Raises:
        UserError: there is none, a byte of it has changed, or it holds what no run has written.
    """
    path = directory / FILE
    if not path.is_file():
        raise UserError(f"no {FILE} in {directory}", "give the `out` directory of the run to go on with")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged:
            raise ValueError(f"{damaged} does not match its checksum")
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        known = state["schema"] == _SCHEMA
        if known:
            state["run"] = _run_of(state)
    except Exception as error:  # torch.load raises whatever the damage leads to
        text = error.message if isinstance(error, UserError) else str(error)
        why = next(iter(text.splitlines()), type(error).__name__)
        raise UserError(f"{path} cannot be read: {shorten(why)}", "start again without `resume`") from error
    if not known:
        schema = shorten(str(state["schema"]))
        raise UserError(f"{path} has schema {schema}, this version reads {_SCHEMA}", "use the version that wrote it")
    return state


def _run_of(state: dict[str, Any]) -> TrainingRun:
    """The run that wrote the checkpoint. Raises UserError or ValueError for a state that none has."""
    epoch, curve = state["epoch"], state["curve"]
    if type(epoch) is not int or epoch < 1:
        raise ValueError(f"epoch is {epoch!r}")
    if not isinstance(curve, list) or not all(isinstance(entry, dict) for entry in curve):
        raise ValueError(f"curve is {curve!r}")
    return TrainingRun.from_json(state["job"])


def kept(run: TrainingRun) -> str:
    """What an interrupted run leaves to go on with, in words."""
    with suppress(UserError):
        state = load(Path(run.out))
        if state["run"].identity == run.identity:
            return f"the checkpoint of epoch {state['epoch']} is kept; resume {run.out} to go on"
    return f"no epoch has ended, so nothing is kept in {run.out}"


def check_same_run(run: TrainingRun, state: dict[str, Any]) -> None:
    """Raises UserError when ``run`` would not continue the run of the checkpoint, naming each difference."""
    check_same_settings(run, state)
    if run.epochs <= state["epoch"]:
        raise UserError(f"the checkpoint already has {state['epoch']} epochs", "ask for more `epochs` than that")


def check_same_settings(run: TrainingRun, state: dict[str, Any]) -> None:
    """Raises UserError when the checkpoint is of a run with other settings, naming each difference."""
    # Earlier versions left the size of the nodes open; all of them ran on those of the launcher.
    before = state["run"].on_nodes_of(run.strategy.gradient_exchange.ranks_per_node).identity
    changed = [f"{k} {before[k]!r} -> {v!r}" for k, v in run.identity.items() if k in before and before[k] != v]
    if changed:
        raise UserError(
            f"the checkpoint is from a run with other settings: {', '.join(changed)}", "resume with the same settings"
        )
