"""What the ranks that are left write down when another is lost: the last step in their memory, from which a new group goes on.

Replicas are equal, so the weights and the optimizer of any of them are the run's. Residuals are each rank's own: those of the
survivors are kept, those of a lost rank are lost. A survivor that had not ended the last step when the group broke has those of
the step before, which the others have summed since: they are dropped too.

Between two exchanges of local steps each rank has weights of its own. A lost rank then gets the mean of the survivors' weights:
so the mean over all ranks, of a new group of any size, is that of the survivors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from paceline.errors import UserError
from paceline.training import checkpoint
from paceline.training.local_state import mean_of
from paceline.training.training_run import TrainingRun

PATTERN = "survivor.*.pt"


def leave(run: TrainingRun, epoch: int, step: int, shared: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Write the state of this rank at the last boundary of a step, before it ends. Raises UserError: the disk is full."""
    checkpoint.write_alone(Path(run.out) / f"survivor.{own['rank']}.pt", run, epoch, step, {**shared, "parts": [own]})


def found(directory: Path, run: TrainingRun, *, checked: bool = True) -> dict[str, Any] | None:
    """The state that survivors of this run have left, as of ``checkpoint.read``; None where there is none that is whole.

    Of survivors at different steps those at the last one count: what the others owe has been sent in part since. ``lost`` in it
    has the ranks that left nothing, ``behind`` those that left an earlier step. ``checked``: as of ``checkpoint.read``; if not,
    ``hook`` has the survivors alone.
    """
    states: list[dict[str, Any]] = []
    for path in sorted(directory.glob(PATTERN)):
        with suppress(UserError, KeyError):
            state = checkpoint.read(path, checked=checked)
            checkpoint.check_same_settings(run, state)
            states.append(state)
    if not states:
        return None
    last = max((state["epoch"], state["step"]) for state in states)
    at_last = [state for state in states if (state["epoch"], state["step"]) == last]
    parts = {state["parts"][0]["rank"]: state["parts"][0] for state in at_last}
    workers = at_last[0]["workers"]
    behind = sorted({state["parts"][0]["rank"] for state in states} - parts.keys())
    lost = [rank for rank in range(workers) if rank not in parts and rank not in behind]
    hooks = {rank: part["hook"] for rank, part in parts.items()}
    if checked and len(hooks) < workers:
        other = _without_residuals(list(hooks.values()))
        hooks = {rank: {**other, "rank": rank} for rank in range(workers)} | hooks
    return {
        **at_last[0],
        "parts": list(parts.values()),
        "hook": [hooks[rank] for rank in sorted(hooks)],
        "lost": lost,
        "behind": behind,
        "file": "",
        "fallback": "",
    }


def newest(directory: Path, run: TrainingRun, *, mapped: bool = False, checked: bool = True) -> dict[str, Any]:
    """What survivors have left, or the newest checkpoint if that is of a later step. Raises UserError: there is neither.

    Args:
        mapped, checked: as of ``checkpoint.read``.
    """
    left = found(directory, run, checked=checked) if run.elastic else None
    try:
        saved = checkpoint.load(directory, run, mapped=mapped, checked=checked)
    except UserError:
        if left is None:
            raise
        return left
    return left if left and (left["epoch"], left["step"]) >= (saved["epoch"], saved["step"]) else saved


def kept(run: TrainingRun) -> str:
    """What a run that ended early leaves to go on with, in words."""
    with suppress(UserError):
        state = newest(Path(run.out), run, checked=False)
        if "lost" in state:
            ranks = _ranks([part["rank"] for part in state["parts"]])
            return f"{checkpoint.place(state)} is kept, from the memory of {ranks}; the same command goes on from it"
    return checkpoint.kept(run)


def remove(directory: Path) -> None:
    """Remove what survivors have left, once a checkpoint holds it."""
    for path in directory.glob(PATTERN):
        with suppress(OSError):
            path.unlink()


def said(state: Mapping[str, Any]) -> str:
    """Where a run goes on, in words."""
    ranks = _ranks([part["rank"] for part in state["parts"]])
    lost = f"; {_ranks(state['lost'])} was lost, and its residuals with it" if state["lost"] else ""
    behind = f"; {_ranks(state['behind'])} was a step behind, and its residuals are dropped" if state["behind"] else ""
    return f"going on from {checkpoint.place(state)}, in the memory of {ranks} when the group broke{lost}{behind}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {', '.join(map(str, sorted(ranks)))}"


def _without_residuals(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The state of a hook that owes nothing, from those of the survivors; of local steps it has the mean of their weights."""
    some = states[0]
    kinds = {kind: _zeros(some[kind]) for kind in ("feedback", "error_dict") if kind in some}
    return {**some, **kinds, **(mean_of([dict(state) for state in states]) if "local" in some else {})}


def _zeros(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return torch.zeros_like(tree)
    return {name: _zeros(value) for name, value in tree.items()}
