"""State that the remaining ranks write when another is lost: the last step in their memory, from which a new group continues.

Replicas are equal, so the weights and the optimizer of any of them are valid. Every row of a divided tensor
must be with some survivor. Residuals differ by rank: those of the survivors are kept, those of a lost rank are lost. A survivor
that had ended another step than the others when the group broke has residuals that the others have summed since, or not yet:
they are dropped too. A rank in the middle of an update leaves nothing.

Between two exchanges of local steps each rank has different weights. A lost rank then gets the mean of the survivors' weights:
so the mean over all ranks, of a new group of any size, is that of the survivors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import torch

from paceline.errors import UserError
from paceline.training.attach.local.local_state import mean_of
from paceline.training.attach.shards.sharded_state import KINDS
from paceline.training.runs.checkpoints import checkpoint
from paceline.training.runs.training_run import TrainingRun

PATTERN = "survivor.*.pt"


def leave(run: TrainingRun, epoch: int, step: int, shared: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Write the state of this rank at the last boundary of a step before it ends. Raises UserError: the disk is full."""
    state = {**shared, "sharers": 0, "shared_by": shared.get("sharers", 0), "parts": [own]}
    checkpoint.write_alone(Path(run.out) / f"survivor.{own['rank']}.pt", run, epoch, step, state)


def found(directory: Path, run: TrainingRun, *, mapped: bool = False, checked: bool = True) -> dict[str, Any] | None:
    """Return the state that survivors of this run have left, as ``checkpoint.read`` does; None without a complete one.

    If survivors are at different steps, those at the last step with every row count. Its entry ``lost`` has the ranks that left
    nothing, ``apart`` those that left another step. ``mapped``, ``checked``: as of ``checkpoint.read``; with neither ``hook``
    has the survivors alone.
    """
    states: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    for path in sorted(directory.glob(PATTERN)):
        with suppress(UserError, KeyError):
            state = checkpoint.read(path, mapped=mapped, checked=checked)
            checkpoint.check_same_settings(run, state)
            group = state["workers"], state.get("shared_by", 0)
            states.setdefault((state["epoch"], state["step"], *group), []).append(state)
    whole = [place for place, here in states.items() if len(_owners(here)) == here[0].get("shared_by", 0)]
    if not whole:
        return None
    at_last = states[max(whole)]
    shards = list(_owners(at_last).values())
    parts = {state["parts"][0]["rank"]: state["parts"][0] for state in at_last}
    workers = at_last[0]["workers"]
    others = [state for place, here in states.items() if place[2:] == max(whole)[2:] for state in here]
    apart = sorted({state["parts"][0]["rank"] for state in others} - parts.keys())
    lost = [rank for rank in range(workers) if rank not in parts and rank not in apart]
    hooks = {rank: part["hook"] for rank, part in parts.items()}
    if (checked or mapped) and len(hooks) < workers:
        missing = [rank for rank in range(workers) if rank not in hooks]
        hooks |= zip(missing, _owing_nothing(list(hooks.values()), missing), strict=True)
    return {
        **at_last[0],
        **(checkpoint.with_shards(at_last[0], shards, mapped) if shards and (checked or mapped) else {}),
        "parts": list(parts.values()),
        "hook": [hooks[rank] for rank in sorted(hooks)],
        "lost": lost,
        "apart": apart,
        "file": "",
        "fallback": "",
    }


def _owners(states: Sequence[Mapping[str, Any]]) -> dict[int, Any]:
    """Return shards of one survivor for each place among the ranks that share a copy, all at one step."""
    parts = [state["parts"][0] for state in states]
    sharers = states[0].get("shared_by", 0)
    return {part["rank"] % sharers: part["shards"] for part in parts} if sharers else {}


def newest(directory: Path, run: TrainingRun, *, mapped: bool = False, checked: bool = True) -> dict[str, Any]:
    """Return the state that survivors have left, or the newest checkpoint if it is later. Raises UserError without either.

    Args:
        mapped, checked: as of ``checkpoint.read``.
    """
    left = found(directory, run, mapped=mapped, checked=checked) if run.elastic else None
    try:
        saved = checkpoint.load(directory, run, mapped=mapped, checked=checked)
    except UserError:
        if left is not None:
            return left
        names = sorted(path.name for path in directory.glob(PATTERN)) if run.elastic else []
        if names and not any((directory / name).exists() for name in (checkpoint.FILE, checkpoint.PREVIOUS)):
            raise UserError(
                f"{directory} holds what survivors of another run have left, or it is damaged: {', '.join(names)}",
                "name another --out, or remove these files",
            ) from None
        raise
    return left if left and (left["epoch"], left["step"]) >= (saved["epoch"], saved["step"]) else saved


def kept(run: TrainingRun) -> str:
    """Describe the state that a run that ended early leaves."""
    with suppress(UserError):
        state = newest(Path(run.out), run, checked=False)
        if "lost" in state:
            ranks = _ranks([part["rank"] for part in state["parts"]])
            return f"{checkpoint.place(state)} is kept, from the memory of {ranks}; the same command continues from it"
    return checkpoint.kept(run)


def remove(directory: Path, run: TrainingRun) -> None:
    """Remove the files of this run's survivors, once a checkpoint holds their state. Files of another run stay."""
    for path in directory.glob(PATTERN):
        if _is_of(run, path):
            with suppress(OSError):
                path.unlink()


def remove_partial(directory: Path, run: TrainingRun) -> bool:
    """Remove the state of survivors if all of it is of this run and some rows are missing. Returns True if it was removed."""
    paths = list(directory.glob(PATTERN))
    if not paths or not all(_is_of(run, path) for path in paths) or found(directory, run, checked=False) is not None:
        return False
    remove(directory, run)
    return True


def _is_of(run: TrainingRun, path: Path) -> bool:
    """Return whether a file belongs to one of this run's survivors and can be read."""
    try:
        checkpoint.check_same_settings(run, checkpoint.read(path, checked=False))
    except UserError:
        return False
    return True


def said(state: Mapping[str, Any]) -> str:
    """Describe the place where a run continues."""
    ranks = _ranks([part["rank"] for part in state["parts"]])
    lost = f"; the residuals of {_ranks(state['lost'])} are lost" if state["lost"] else ""
    apart = f"; the residuals of {_ranks(state['apart'])}, of another step, are dropped" if state["apart"] else ""
    return f"going on from {checkpoint.place(state)}, in the memory of {ranks} when the group broke{lost}{apart}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {', '.join(map(str, sorted(ranks)))}"


def _owing_nothing(states: Sequence[Mapping[str, Any]], ranks: Sequence[int]) -> list[dict[str, Any]]:
    """Return empty residuals as states of lost ranks; for local steps with the mean of the survivors' weights."""
    some = states[0]
    result = [dict(some) for _ in ranks]
    for kind in KINDS:  # of a sharded model: in the places that no survivor has
        for name, part in some.get(kind, {}).items():
            places = set(product(range(part["sources"]), range(part["places"])))
            free = sorted(places - {(state[kind][name]["source"], state[kind][name]["place"]) for state in states})
            for state, (source, place) in zip(result, free, strict=True):
                none = torch.zeros_like(part["values"])
                state[kind] = {**state[kind], name: {**part, "source": source, "place": place, "values": none}}
    kinds = {kind: _zeros(some[kind]) for kind in ("feedback", "error_dict") if kind in some}
    mean = mean_of([dict(state) for state in states]) if "local" in some else {}
    named = [{"rank": rank} if "rank" in some else {} for rank in ranks]
    return [{**state, **kinds, **mean, **own} for state, own in zip(result, named, strict=True)]


def _zeros(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return torch.zeros_like(tree)
    return {name: _zeros(value) for name, value in tree.items()}
