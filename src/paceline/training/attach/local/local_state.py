"""State of local steps: the part that a rank saves, and how a rank continues from saved parts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import torch

from paceline.errors import UserError
from paceline.strategy import GradientExchange, LocalSteps
from paceline.strategy.local_steps import EVERY_STEP
from paceline.training.attach.hooks.state import (
    check_same_exchange,
    check_tensors,
    own_state,
    settings,
    well_formed,
    with_every_residual,
)
from paceline.training.attach.local.local_fragments import Fragment, StartedExchange
from paceline.training.attach.local.worker_ranks import ShardPart, WorkerPlace
from paceline.training.attach.local.worker_state import of_place, written_place
from paceline.training.exchanges.exchange_group import ExchangeSetup, share
from paceline.training.exchanges.gradients.error_feedback import Feedback
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec
from paceline.training.exchanges.wires.collectives import Wire
from paceline.training.exchanges.wires.meter import Meter

LocalState = dict[str, Any]
_TENSORS = ("anchor", "outer_momentum", "weights")


class Sync(Protocol):
    """Attributes of ``LocalSync`` that make up its state."""

    gradient_exchange: GradientExchange
    local: LocalSteps
    step_number: int
    seed: int
    returned: int
    tensors: list[TensorSpec]
    dense: dict[str, str]
    place: WorkerPlace
    parts: dict[str, ShardPart]
    fragments: list[Fragment]
    buffers: dict[str, torch.Tensor]
    counts: dict[str, torch.Tensor]
    kept_buffers: torch.Tensor
    pending: StartedExchange | None
    owed: dict[str, torch.Tensor]
    setup: ExchangeSetup | None
    meter: Meter
    wire: Wire

    @property
    def feedback(self) -> Feedback | None:
        """Error feedback of the codec."""

    def go_on(self, pending: Mapping[str, Any] | None) -> None:
        """Continue an exchange that has arrived."""


def state_of(sync: Sync) -> LocalState:
    """Return the state of this rank, with no memory shared with the model."""
    pending = sync.pending
    named: dict[str, dict[str, torch.Tensor]] = {kind: {} for kind in _TENSORS}
    for fragment in sync.fragments:
        named["anchor"] |= fragment.named(_copy(fragment.anchor))
        if fragment.momentum is not None:
            named["outer_momentum"] |= fragment.named(_copy(fragment.momentum))
        for tensor, w in zip(fragment.tensors, fragment.weights, strict=True):
            named["weights"][tensor.name] = _copy(w)
    owed = {name: _copy(values) for name, values in sync.owed.items()}
    kept = sync.feedback.state() if sync.feedback else {"residual": owed, "velocity": {}}
    return {
        "step": sync.step_number,
        "seed": sync.seed,
        "nonfinite_steps": sync.returned,
        "compression": sync.gradient_exchange.compression.name,
        "gradient_exchange": settings(sync.gradient_exchange),
        "measuring": False,
        "workers": sync.wire.world_size,
        "rank": sync.wire.rank,
        **({"place": written_place(sync.place, sync.parts.values())} if sync.place.devices > 1 else {}),
        "factor": 1.0,
        "feedback": with_every_residual(kept, sync.gradient_exchange, sync.tensors, sync.dense),
        "local": asdict(sync.local),
        **named,
        "buffers": {name: _copy(buffer) for name, buffer in (*sync.buffers.items(), *sync.counts.items())},
        "kept_buffers": _copy(sync.kept_buffers),
        "fragment_tensors": [[t.name for t in fragment.tensors] for fragment in sync.fragments],
        "idle": [fragment.idle for fragment in sync.fragments],
        "pending": None
        if pending is None
        else {
            "fragment": pending.fragment,
            "due": pending.due,
            "mean": _copy(pending.mean),
            "buffers": _copy(pending.buffers),
            "trained": pending.trained,
            "finite": pending.finite,
        },
    }


def refuse_one_name() -> None:
    """Raise UserError if torch.distributed.checkpoint asks an object's ``state_dict`` for the state of this rank."""
    if str(sys._getframe(2).f_globals.get("__name__", "")).startswith("torch.distributed.checkpoint"):
        raise UserError(
            "torch.distributed.checkpoint keeps one rank's values under one name, and each rank has a state of local steps",
            'save it as bytes under a name of the rank: {f"local {rank}": packed}, with torch.save into io.BytesIO',
        )


def mean_of(states: Sequence[LocalState]) -> LocalState:
    """Return the mean of the ranks' weights and buffers, as entries of a state. Counters, as of batches, are of rank 0."""
    return {
        kind: {
            name: _mean([s[kind][name] for s in states]).to(value.dtype) if value.is_floating_point() else value
            for name, value in states[0][kind].items()
        }
        for kind in ("weights", "buffers")
    }


def load(sync: Sync, state: LocalState | Sequence[LocalState]) -> None:
    """Continue from a state of ``state_of``, or from those of all ranks. Raises UserError as ``LocalSync.load_state_dict``."""
    states: list[LocalState] = of_place(well_formed(state), sync.place, sync.parts)
    first, exchange = states[0], sync.gradient_exchange
    for rank_state in states:
        _check_local(rank_state, sync)
    check_same_exchange(first, exchange)
    resized = first["workers"] != sync.wire.world_size
    if resized and sorted(s["rank"] for s in states) != list(range(first["workers"])):
        raise UserError(
            f"{sync.wire.world_size} workers, the state is of {first['workers']}",
            f"give load_state_dict the states of all {first['workers']} ranks",
        )
    own = own_state(states, exchange, sync.wire.world_size, sync.wire.rank)
    if not resized and own["rank"] != sync.wire.rank:  # of a codec without residuals any would do, but not for the weights
        raise UserError(f"rank {sync.wire.rank} has the state of rank {own['rank']}", "give load_state_dict that of this rank")
    check_tensors(own, exchange, sync.tensors, sync.dense)
    every = states if resized else [own]
    sync.step_number, sync.seed, sync.returned = own["step"], own["seed"], own["nonfinite_steps"]
    sync.meter.nonfinite_steps = own["nonfinite_steps"]
    with torch.no_grad():
        for number, fragment in enumerate(sync.fragments):
            _fill(fragment.named(fragment.anchor.detach()), own["anchor"])
            if fragment.momentum is not None:
                _fill(fragment.named(fragment.momentum), own["outer_momentum"])
            for tensor, w in zip(fragment.tensors, fragment.weights, strict=True):
                w.copy_(_mean([s["weights"][tensor.name] for s in every]).view(w.shape))
            fragment.idle = all(s["idle"][number] for s in every)
        for name, buffer in sync.buffers.items():
            buffer.copy_(_mean([s["buffers"][name] for s in every]))
        for name, buffer in sync.counts.items():
            buffer.copy_(own["buffers"][name])
    sync.kept_buffers = own["kept_buffers"].to(sync.wire.device).clone()
    sync.go_on(own["pending"])
    sync.owed = {}
    if sync.feedback is not None:
        sync.feedback.load(own["feedback"])
        _share_out(sync, resized)
    else:  # of a hierarchy whose ranks are on one node now
        sync.owed = {name: values for name, values in own["feedback"]["residual"].items() if values.any()}


def _share_out(sync: Sync, resized: bool) -> None:
    """Convert residuals of a hierarchy of another size: each rank keeps its own part, multiplied by the ranks of its node."""
    setup = sync.setup
    if setup is None or setup.inner is None or setup.feedback is None or not resized:
        return
    for fragment in sync.fragments:
        device = setup.device(sync.wire.device)
        setup.feedback.keep(fragment.layout, *share(setup, fragment.layout), setup.inner.world_size, device)


def _check_local(state: LocalState, sync: Sync) -> None:
    """Raise UserError for the state of a hook, of other local steps or of other tensors."""
    fix = "give what state_dict() of local steps returned"
    if not isinstance(state.get("local"), Mapping):
        raise UserError("the state is of an exchange in every step, not of local steps", fix)
    now, earlier = asdict(sync.local), {**asdict(EVERY_STEP), **state["local"]}  # older versions had fewer choices
    differing = [f"{k} {earlier[k]}, here {v}" for k, v in now.items() if earlier[k] != v]
    if differing:
        raise UserError(f"the state is of other local steps: {'; '.join(differing)}", "go on with those of the run before")
    sizes = {t.name: t.elements for fragment in sync.fragments for t in fragment.tensors}
    for kind in _TENSORS:
        if kind == "outer_momentum" and not sync.local.outer_momentum:
            continue
        found = state.get(kind)
        held = {name: v.numel() for name, v in found.items()} if isinstance(found, Mapping) else {}
        if held != sizes:
            wrong = sorted({*held, *sizes} - {name for name in held if held[name] == sizes.get(name)})
            raise UserError(f"the state's {kind} does not have the model's {', '.join(wrong[:3])}", fix)
    if set(state.get("buffers", {})) != {*sync.buffers, *sync.counts}:
        raise UserError("the state has other buffers than the model", fix)


def _fill(parts: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    for name, part in parts.items():
        part.copy_(values[name].reshape(-1))


def _mean(values: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(values) == 1:
        return values[0]
    return torch.stack([v.double() for v in values]).mean(0)


def _copy(values: torch.Tensor) -> torch.Tensor:
    return values.detach().cpu().clone()
