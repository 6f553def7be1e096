"""Checkpoints: one file a run, written whole or not at all, read without running code from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from paceline.errors import UserError
from paceline.training.training_run import Job

FILE = "checkpoint.pt"
_SCHEMA = 1


def save(directory: Path, job: Job, epoch: int, state: dict[str, Any]) -> None:
    """Write ``state`` (weights, optimizer, hook, curve) as the checkpoint after ``epoch`` epochs."""
    temporary = directory / f"{FILE}.{os.getpid()}.tmp"
    torch.save({"schema": _SCHEMA, "job": job.to_json(), "epoch": epoch, **state}, temporary)
    temporary.replace(directory / FILE)


def load(directory: Path) -> dict[str, Any]:
    """The checkpoint in ``directory``. Raises UserError when there is none or it cannot be read."""
    path = directory / FILE
    if not path.is_file():
        raise UserError(f"no {FILE} in {directory}", "give the --out directory of the run to go on with")
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        known = state["schema"] == _SCHEMA
    except Exception as error:  # torch.load raises whatever the damage leads to
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{path} cannot be read: {why}", "start again without --resume") from error
    if not known:
        raise UserError(f"{path} has schema {state['schema']}, this version reads {_SCHEMA}", "use the version that wrote it")
    return state


def check_same_run(job: Job, state: dict[str, Any]) -> None:
    """Raises UserError when ``job`` would not continue the run of the checkpoint, naming each difference."""
    before = Job.from_json(state["job"]).identity
    changed = [f"{k} {before[k]!r} -> {v!r}" for k, v in job.identity.items() if k in before and before[k] != v]
    if changed:
        raise UserError(f"the checkpoint is of another run: {', '.join(changed)}", "resume with the same settings")
    if job.epochs <= state["epoch"]:
        raise UserError(f"the checkpoint already has {state['epoch']} epochs", "ask for more than that with --epochs")
