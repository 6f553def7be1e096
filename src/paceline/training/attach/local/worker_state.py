"""States of workers that are groups of ranks: selection of this rank's part, also from workers of another shape."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from math import prod
from typing import Any

import torch

from paceline.errors import UserError
from paceline.training.attach.local.worker_ranks import ShardPart, WorkerPlace

_SHARDS = ("anchor", "outer_momentum", "weights")
_KEPT = ("residual", "velocity")
_ALONE = asdict(WorkerPlace())


def written_place(place: WorkerPlace, parts: Collection[ShardPart]) -> dict[str, Any]:
    """Return the place of a rank and its part of each tensor, as plain values of its state."""
    layout = {
        p.name: {
            "whole": list(p.spec.shape),
            "shape": list(p.shape),
            "corner": list(p.corner),
            "start": p.start,
            "stop": p.stop,
        }
        for p in parts
    }
    return {**asdict(place), "parts": layout}


def of_place(states: Sequence[dict[str, Any]], place: WorkerPlace, parts: Mapping[str, ShardPart]) -> list[dict[str, Any]]:
    """Return the states of this rank's part, one of each worker that is given.

    States of workers of another shape are joined to whole tensors, of which this rank takes its part.

    Raises:
        UserError: the state of another part of the worker; another shape, and not the states of all ranks.
    """
    saved = place_in(states[0])
    if (saved.shards, saved.copies) == (place.shards, place.copies):
        own = [state for state in states if place_in(state) == place]
        if not own:
            raise UserError(
                f"the state is of shard {saved.shard}, copy {saved.copy}; this rank has {place.shard}, {place.copy}",
                "give load_state_dict the state of this rank, or those of all ranks",
            )
        return own
    workers = states[0]["workers"]
    by_seat = {(state["rank"], place_in(state)): state for state in states}
    if len(by_seat) != workers * saved.devices:
        raise UserError(
            f"workers of {place.devices} devices, the state is of workers of {saved.devices}",
            f"give load_state_dict the states of all {workers * saved.devices} ranks",
        )
    unknown = [name for name in states[0]["weights"] if name not in parts]
    if unknown:
        raise UserError(f"the state has {unknown[0]}, the model does not train it", "load it into the model that saved it")
    for name, part in parts.items():
        before = _layout(states[0], name)
        if before is not None and tuple(before["whole"]) != part.spec.shape:
            raise UserError(f"the state has {name} of shape {tuple(before['whole'])}", "load it into the model that saved it")
    return [_joined([s for (rank, _), s in by_seat.items() if rank == worker], place, parts) for worker in range(workers)]


def place_in(state: Mapping[str, Any]) -> WorkerPlace:
    """Return the place of the rank that made a state."""
    return WorkerPlace(**{name: state.get("place", _ALONE)[name] for name in _ALONE})


def _layout(state: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = state["place"]["parts"].get(name) if "place" in state else None
    return found


def _joined(states: Sequence[dict[str, Any]], place: WorkerPlace, parts: Mapping[str, ShardPart]) -> dict[str, Any]:
    """Return the state of one worker at another place. ``states``: of all its ranks."""
    ordered = sorted(states, key=lambda s: (place_in(s).copy, place_in(s).shard))
    first = ordered[0]
    shards = [state for state in ordered if place_in(state).copy == 0]
    joined = {kind: {name: _own(name, shards, kind, parts[name]) for name in first[kind]} for kind in _SHARDS}
    feedback = {
        kind: {
            name: _own_residual(name, ordered, kind, parts[name]) for name in _residual_names(ordered, kind) if name in parts
        }
        for kind in _KEPT
    }
    pending = first["pending"]
    if pending is not None:
        pending = {**pending, "mean": _pending_mean(shards, parts)}
    return {**first, **joined, "feedback": feedback, "pending": pending, "place": written_place(place, parts.values())}


def _residual_names(states: Sequence[Mapping[str, Any]], kind: str) -> list[str]:
    return list(dict.fromkeys(name for state in states for name in state["feedback"][kind]))


def _whole(name: str, shards: Sequence[Mapping[str, Any]], values: Sequence[torch.Tensor], part: ShardPart) -> torch.Tensor:
    """Return a tensor from the shards of a worker."""
    whole = torch.zeros(part.spec.shape, dtype=values[0].dtype)
    for state, shard in zip(shards, values, strict=True):
        layout = _layout(state, name)
        shape, corner = (part.spec.shape, (0,) * whole.ndim) if layout is None else (layout["shape"], layout["corner"])
        if prod(shape):
            whole[tuple(slice(at, at + n) for at, n in zip(corner, shape, strict=True))] = shard.reshape(tuple(shape))
    return whole


def _shard(whole: torch.Tensor, part: ShardPart) -> torch.Tensor:
    """Return this rank's shard of a tensor, flat."""
    if not prod(part.shape):
        return whole.new_zeros(0)
    return whole[tuple(slice(at, at + n) for at, n in zip(part.corner, part.shape, strict=True))].reshape(-1).clone()


def _own(name: str, shards: Sequence[Mapping[str, Any]], kind: str, part: ShardPart) -> torch.Tensor:
    return _shard(_whole(name, shards, [state[kind][name] for state in shards], part), part)


def _own_residual(name: str, states: Sequence[Mapping[str, Any]], kind: str, part: ShardPart) -> torch.Tensor:
    """Return this rank's residuals of a tensor. ``states``: of all ranks of a worker, copy after copy."""
    by_shard: dict[int, list[torch.Tensor]] = {}
    for state in states:
        by_shard.setdefault(place_in(state).shard, []).append(state["feedback"][kind][name].reshape(-1))
    first = [state for state in states if place_in(state).copy == 0]
    flat = [torch.cat(by_shard[place_in(state).shard]) for state in first]
    return _shard(_whole(name, first, flat, part), part)[part.start : part.stop]


def _pending_mean(shards: Sequence[Mapping[str, Any]], parts: Mapping[str, ShardPart]) -> torch.Tensor:
    """Return this rank's shards of the mean of the fragment in flight."""
    number = shards[0]["pending"]["fragment"]
    names = shards[0]["fragment_tensors"][number]
    split = [
        dict(zip(names, state["pending"]["mean"].split([state["anchor"][name].numel() for name in names]), strict=True))
        for state in shards
    ]
    return torch.cat(
        [_shard(_whole(name, shards, [values[name] for values in split], parts[name]), parts[name]) for name in names]
    )
