"""State of a hook (residuals, draws, position) in the checkpoints of a framework.

Residuals differ from rank to rank, so every rank's state is kept: as a file per rank in the checkpoint's folder, or gathered by
the first rank, which writes the checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from paceline.errors import UserError
from paceline.training.attach.hooks.ddp import Hook
from paceline.training.attach.hooks.powersgd import PowerSGD

FILE = "paceline_rank{}.pt"
AnyHook = Hook | PowerSGD


def write_state(hook: AnyHook, folder: Path) -> None:
    """Write the state of this rank into ``folder``, atomically. Every rank must call it. Raises UserError."""
    path = folder / FILE.format(dist.get_rank())
    temporary = path.with_suffix(".tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(hook.state_dict(), temporary)
        temporary.replace(path)
    except (OSError, RuntimeError) as error:
        raise UserError(f"cannot write {path}: {error}", "give the checkpoint a disk with room") from error


def read_state(hook: AnyHook, folder: Path) -> None:
    """Restore the state of ``write_state`` in ``folder``; without one, residuals start at 0. Every rank must call it.

    Raises:
        UserError: a file of another compression or model, a damaged one, or not those of all ranks.
    """
    paths = sorted(folder.glob(FILE.format("*")))
    own = folder / FILE.format(dist.get_rank())
    states = [_read(own)] if own in paths else []
    if not states or states[0].get("workers") != dist.get_world_size():
        states = [_read(path) for path in paths]
    load_states(hook, states, str(folder))


def gathered(hook: AnyHook) -> list[Any]:
    """Return the states of all ranks on the first rank, and an empty list on the others. Every rank must call it."""
    first = dist.get_rank() == 0
    states: list[Any] | None = [None] * dist.get_world_size() if first else None
    dist.gather_object(hook.state_dict(), states)
    return states or []


def load_states(hook: AnyHook, states: Sequence[Any], place: str) -> None:
    """Restore the state of this rank from the states of all ranks, or from its own. Without one, report that residuals start at
    0. Raises UserError.
    """
    if states:
        hook.load_state_dict(states)
    elif dist.get_rank() == 0:
        print(f"paceline: {place} has no state of a compression: residuals start at 0", file=sys.stderr, flush=True)


def _read(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises whatever the damage leads to
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{path} cannot be read: {why}", "resume from another checkpoint") from error
