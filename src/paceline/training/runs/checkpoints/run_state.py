"""State of a run at the boundary of a step: the part that all ranks share, the part of each rank, and its restoration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from paceline.slimming.methods.wrapped_optimizer import WrappedOptimizer
from paceline.training.optimizers.layerwise import Layerwise
from paceline.training.runs.checkpoints.random_streams import random_state
from paceline.training.runs.loop import Trainer


def shared_state(trainer: Trainer, curve: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state that is equal on every rank: weights, optimizer, curve. Its tensors are those in use, not copies.

    Tensors divided among ranks are in ``own_part``. ``sharers`` are the ranks from 0 on that together hold all of them.
    """
    state: dict[str, Any] = {
        "model": trainer.weights(),
        "optimizer": trainer.optimizer_state(),
        "curve": list(curve),
        "workers": trainer.strategy.world_size,
        "sharers": trainer.sharers,
        "skipped_steps": trainer.skipped_steps,
        "noise": trainer.noise.state_dict() if trainer.noise is not None else {},
    }
    if scaler := trainer.arithmetic.state_dict():
        state["scaler"] = scaler
    if layerwise := layerwise_of(trainer.optimizer):
        state["diagnostics"] = layerwise.diagnostics.state_dict()
    return state


def own_state(trainer: Trainer) -> dict[str, Any]:
    """Return the state of this rank alone, without shards: residuals, random streams, and sums over the current epoch.

    Its tensors are those in use, not copies.
    """
    return {
        "rank": trainer.rank,
        "hook": trainer.state(),
        "random": random_state(trainer.device),
        "loss": trainer.loss_so_far,
        "seconds": trainer.seconds_so_far,
    }


def own_part(trainer: Trainer) -> dict[str, Any]:
    """Return the part of a checkpoint that this rank writes: its own state, and shards if it is among the first ``sharers``."""
    return {**own_state(trainer), "shards": trainer.shards() if trainer.rank < trainer.sharers else {}}


def restore(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Continue from a checkpoint, as read by ``checkpoint.read``, with the parts of this rank or of all.

    With the same number of workers the run continues bit for bit. With another number each gets the mean of the residuals, and
    the rest of an epoch is divided again, in the same global batches.

    Raises:
        UserError: a state of another hook, or one that lacks ranks.
    """
    trainer.resume(state["model"], state["optimizer"], state["hook"])
    trainer.arithmetic.load_state_dict(state.get("scaler", {}))
    trainer.skipped_before = state.get("skipped_steps", 0)
    workers = trainer.strategy.world_size
    if trainer.noise is not None and state.get("noise"):
        # Another number of workers has another estimate: it restarts.
        trainer.noise.load_state_dict(state["noise"] if state["noise"].get("workers", workers) == workers else {})
    if (layerwise := layerwise_of(trainer.optimizer)) and "diagnostics" in state:
        layerwise.diagnostics.load_state_dict(state["diagnostics"])
    trainer.done = state["step"]
    if not trainer.done:
        return
    parts = {part["rank"]: part for part in state["parts"]}
    if state.get("workers") == workers and trainer.rank in parts:
        own = parts[trainer.rank]
        trainer.random_state = snapshot(own["random"])
        trainer.loss_so_far, trainer.seconds_so_far = own["loss"].clone().to(trainer.device), own["seconds"]
    else:  # each rank takes an equal share of what all have seen
        seen = [part["loss"].cpu() for part in parts.values()]
        trainer.loss_so_far = (torch.stack(seen).mean() if seen else torch.zeros((), dtype=torch.float32)).to(trainer.device)
        trainer.seconds_so_far = max((part["seconds"] for part in parts.values()), default=0.0)


def layerwise_of(optimizer: torch.optim.Optimizer) -> Layerwise | None:
    """Return the LARS or LAMB optimizer, also inside a penalty."""
    inner = optimizer.inner if isinstance(optimizer, WrappedOptimizer) else optimizer
    return inner if isinstance(inner, Layerwise) else None


def snapshot(value: Any, into: Any = None) -> Any:
    """Return a copy of nested containers, with private tensors on the host.

    Args:
        into: an earlier snapshot that is no longer needed: tensors of the same shape are copied into its memory, since new
            memory costs more than the copy.
    """
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if isinstance(into, torch.Tensor) and into.shape == value.shape and into.dtype == value.dtype:
            return into.copy_(value)
        return value.to("cpu", copy=True)
    if isinstance(value, Mapping):
        before = into if isinstance(into, Mapping) else {}
        return {name: snapshot(item, before.get(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        old = into if isinstance(into, list | tuple) and len(into) == len(value) else [None] * len(value)
        return type(value)([snapshot(item, place) for item, place in zip(value, old, strict=True)])
    return value
