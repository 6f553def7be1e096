"""First network of a run: built, given its weights, and slimmed if there is a plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline import models
from paceline.errors import UserError, shorten
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.shrink import load as slimmed
from paceline.training.runs.checkpoints import checkpoint
from paceline.training.runs.checkpoints.state_shards import whole
from paceline.training.runs.training_run import TrainingRun
from paceline.workload import call_factory


def build_model(spec: str, seed: int) -> nn.Module:
    """Build a network by name or ``module:function``; equal seeds give equal weights."""
    torch.manual_seed(mixed_seed(seed))
    built = call_factory(spec) if ":" in spec else models.build(spec)
    module = built[0] if isinstance(built, tuple) else built
    if not isinstance(module, nn.Module):
        raise UserError(f"{spec} returned {type(module).__name__}", "return a torch.nn.Module")
    return module


def starting_model(run: TrainingRun) -> nn.Module:
    """Return the network of a run before its first step.

    Raises:
        UserError: weights or a plan of another network, or a file that cannot be read.
    """
    model = build_model(run.model, run.seed)
    if run.start:
        load_weights(model, run.start, run.model)
    return slimmed(SlimPlan.load(run.plan), model) if run.plan else model


def teacher_of(run: TrainingRun) -> nn.Module | None:
    """Return the whole network to learn from, in eval mode and without gradients; None without one. Raises UserError."""
    if not run.teacher:
        return None
    model = build_model(run.model, run.seed)
    load_weights(model, run.teacher, run.model)
    return model.eval().requires_grad_(False)


def load_weights(model: nn.Module, path: str | Path, name: str) -> None:
    """Load the weights of a run's directory, of its checkpoint, or of a file of a ``state_dict`` into a network.

    Args:
        name: name of the network, for messages.

    Raises:
        UserError: nothing exists there, or the weights belong to another network.
    """
    try:
        model.load_state_dict(weights_in(path))
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        why = lines[1] if len(lines) > 1 else lines[0]
        raise UserError(f"the weights in {path} are not {name}'s: {shorten(why)}", "give weights of this network") from error


def weights_in(path: str | Path) -> Mapping[str, Tensor]:
    """Return the weights in a run's directory, in a checkpoint, or in a file of a ``state_dict``, without running code from it.

    Raises:
        UserError: nothing exists there, or it is another kind of file.
    """
    file = Path(path)
    if file.is_dir():
        return _loaded_weights(checkpoint.load(file, mapped=True))
    try:
        state: Any = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(f"no weights in {file}", "give a run's directory or a file that torch.save wrote") from error
    except Exception as error:  # torch.load raises whatever the file leads to
        why = shorten(next(iter(str(error).splitlines()), type(error).__name__))
        raise UserError(f"{file} cannot be read: {why}", "save model.state_dict() with torch.save") from error
    if isinstance(state, Mapping):
        # of a run whose ranks share weights out, their rows are in other files
        state = _loaded_weights(checkpoint.read(file, mapped=True)) if state.get("sharers") else state.get("model", state)
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{file} holds no weights", "save model.state_dict() with torch.save")
    return state


def _loaded_weights(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights of a checkpoint whose tensors are still on the disk."""
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in whole(state["model"]).items()}


def mixed_seed(*parts: int) -> int:
    """Return one seed from several numbers of any size; torch accepts 63 bits."""
    seed = 0
    for part in parts:
        seed = (seed * 1_000_003 + part) % (1 << 63)
    return seed
