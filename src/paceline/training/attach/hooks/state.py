"""States of hooks: their gradient exchange, their checks, and the state from which a rank continues."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from paceline.errors import UserError
from paceline.strategy import COMPRESSIONS, GradientExchange
from paceline.strategy.gradient_exchange import RESIDUAL_CHOICES
from paceline.training.exchanges.gradients.error_feedback import shared_out
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec

HookState = dict[str, Any]

Kinds = Mapping[str, type | tuple[type, ...]]
"""Type of each entry of a state."""

POSITION: Kinds = {"step": int, "seed": int, "nonfinite_steps": int, "factor": (int, float)}
"""Entries of every hook's state."""
OF_RANK: Kinds = {**POSITION, "gradient_exchange": Mapping, "workers": int, "rank": int}
"""Further entries of the state of a rank with a whole model."""
OTHER_HOOK = "give what state_dict() of a hook of such a model returned, or go on from weights and optimizer alone"
"""Next step after an error about the state of another kind of hook."""
_KINDS: Kinds = {**OF_RANK, "measuring": bool, "feedback": Mapping}


def well_formed(state: object) -> list[HookState]:
    """Return one state, or those of several ranks, as a list.

    Raises:
        UserError: they are not results of ``Hook.state_dict``, or not of one run.
    """
    states = [_with_gradient_exchange(rank_state) for rank_state in listed(state)]
    for rank_state in states:
        check_entries(rank_state, {})
        if isinstance(rank_state.get("gradient_exchange"), str):
            raise UserError("the state is of a sharded model's hook, this model is whole on each rank", OTHER_HOOK)
    for rank_state in states:
        if is_low_rank(rank_state["compression"]):  # its hook has another state, and checks it
            continue
        check_entries(rank_state, _KINDS)
        if not all(is_tensors(rank_state["feedback"].get(kind)) for kind in ("residual", "velocity")):
            raise damaged(["feedback"])
    if len({(rank_state["compression"], repr(rank_state.get("gradient_exchange"))) for rank_state in states}) > 1:
        names = ", ".join(sorted({rank_state["compression"] for rank_state in states}))
        raise UserError(f"the states are of several runs ({names})", "give those of one checkpoint")
    return states


def refuse_whole_models(state: object) -> None:
    """Raise UserError for the state of a hook of ``DistributedDataParallel``, or of local steps."""
    if isinstance(state, Mapping) and isinstance(_with_gradient_exchange(state).get("gradient_exchange"), Mapping):
        of = "local steps" if "local" in state else "a hook of DistributedDataParallel"
        raise UserError(f"the state is of {of}, this model is sharded by fully_shard", OTHER_HOOK)


def refuse_first_rank_only(workers: int) -> None:
    """Raise UserError if Accelerate asks a hook's ``state_dict`` for the state, since it would drop those of the other ranks.

    Args:
        workers: number of ranks of the hook.
    """
    caller = sys._getframe(2).f_globals.get("__name__", "")
    if workers > 1 and caller == "accelerate.checkpointing":
        raise UserError(
            "each rank has a state of the exchange, and Accelerate saves the state of the first rank only",
            "register EveryRankState(hook) of paceline.integrations.accelerate instead of the hook",
        )


def listed(state: object) -> list[Any]:
    """Return one state, or those of several ranks, as a list. Raises UserError if there is none."""
    states = [state] if isinstance(state, Mapping) or not isinstance(state, Sequence) else list(state)
    if not states:
        raise UserError("the state is of nothing: an empty list was given", "give what state_dict() returned")
    return states


def check_entries(state: object, kinds: Kinds) -> None:
    """Raise UserError for a value that is no state of a hook, or one with an entry of ``kinds`` missing or of another type."""
    if not isinstance(state, Mapping) or not isinstance(state.get("compression"), str):
        raise UserError(f"this is no state of a hook: {_shown(state)}", "give what state_dict() returned")
    wrong = [name for name, kind in kinds.items() if not isinstance(state.get(name), kind)]
    if wrong:
        raise damaged(wrong)


def damaged(wrong: Sequence[str]) -> UserError:
    """Return the error for a state with damaged entries."""
    return UserError(f"the state is damaged: {', '.join(wrong)} missing or wrong", "give what state_dict() returned")


def settings(exchange: GradientExchange) -> dict[str, Any]:
    """Return all choices of an exchange as plain values, including default options. Equal exchanges have equal settings."""
    return {**exchange.to_json(), "options": dict(exchange.description.option_values)}


def exchange_of(state: HookState) -> GradientExchange:
    """Return the gradient exchange of a state. Raises UserError for a missing or illegal entry."""
    try:
        return GradientExchange.from_json(state["gradient_exchange"])
    except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
        raise UserError(f"the state's gradient exchange is damaged: {error}", "give what state_dict() returned") from error


def check_same_exchange(state: HookState, exchange: GradientExchange) -> None:
    """Raise UserError with the differences if the state has another exchange. The storage of residuals may differ."""
    stated, name = state["compression"], exchange.compression.name
    if stated != name:
        raise UserError(f"the state is of {stated}, the model sends {name}", "attach the same compression")
    before, now = settings(exchange_of(state)), settings(exchange)
    names = sorted({*before, *now}.difference(RESIDUAL_CHOICES))
    pairs = {key: (before.get(key), now.get(key)) for key in names}
    differing = [f"{key} {_shown(a)}, here {_shown(b)}" for key, (a, b) in pairs.items() if a != b]
    if differing:
        raise UserError(f"the state is of other settings: {'; '.join(differing)}", "attach with those of the run before")


def own_state(states: Sequence[HookState], exchange: GradientExchange, workers: int, rank: int) -> HookState:
    """Return the state with which this rank continues.

    Raises:
        UserError: states of other ranks, or not all that are necessary.
    """
    by_rank = {rank_state["rank"]: rank_state for rank_state in states}
    before = states[0]["workers"]
    if before == workers and rank in by_rank:
        return by_rank[rank]
    if not exchange.description.error_feedback and not any(rank_state["feedback"]["residual"] for rank_state in states):
        return states[0]  # all are equal
    if sorted(by_rank) != list(range(before)):
        held = ", ".join(map(str, sorted(by_rank)))
        raise UserError(
            f"{workers} workers, the state is of {before} and of rank {held} only",
            f"give load_state_dict the states of all {before} ranks",
        )
    return {**by_rank[0], "feedback": shared_out([rank_state["feedback"] for rank_state in states])}


def with_every_residual(
    feedback: Mapping[str, Mapping[str, torch.Tensor]],
    exchange: GradientExchange,
    tensors: Sequence[TensorSpec],
    dense: Collection[str] | None = None,
) -> dict[str, dict[str, torch.Tensor]]:
    """Return ``feedback`` with zeros for tensors without a residual, because a load in place needs every tensor.

    ``dense``: names of the tensors without residuals; None: those that the exchange leaves dense.
    """
    return {
        kind: {name: torch.zeros(n, dtype=torch.float32) for name, n in sizes.items() if name not in feedback[kind]}
        | dict(feedback[kind])
        for kind, sizes in _residuals(exchange, tensors, dense).items()
    }


def _residuals(
    exchange: GradientExchange, tensors: Sequence[TensorSpec], dense: Collection[str] | None = None
) -> dict[str, dict[str, int]]:
    """Return the number of elements of each compressed tensor's residuals and momentum, by kind and name."""
    described = exchange.description
    dense = described.dense(tensors) if dense is None else dense
    packed = {t.name: t.elements for t in tensors if t.name not in dense} if described.error_feedback else {}
    return {"residual": packed, "velocity": packed if described.option_values.get("momentum") else {}}


def check_tensors(
    state: HookState, exchange: GradientExchange, tensors: Sequence[TensorSpec], dense: Collection[str] | None = None
) -> None:
    """Raise UserError if residuals are missing in the state or belong to other tensors. ``dense`` as above."""
    if "way" not in state:  # an earlier version saved none for tensors that had not been exchanged
        for kind, names in _residuals(exchange, tensors, dense).items():
            missing = sorted(names.keys() - state["feedback"][kind].keys())
            if missing:
                raise UserError(
                    f"the state has no {kind} of {', '.join(missing)}",
                    "load it whole: torch.distributed.checkpoint fills in what a hook has, and auto has none at first",
                )
    sizes = {t.name: t.elements for t in tensors}
    for kind in ("residual", "velocity"):
        for name, values in state["feedback"][kind].items():
            if sizes.get(name) != values.numel():
                raise UserError(f"the state has {values.numel()} residuals of {name}, the model {sizes.get(name, 'none')}")


def _with_gradient_exchange(state: Any) -> Any:
    """Return the state with the key ``gradient_exchange``, in version 0.1.0 ``way``, which held only the rank for PowerSGD."""
    if not isinstance(state, Mapping):
        return state
    if isinstance(state.get("way"), Mapping):
        return {**state, "gradient_exchange": state["way"]}
    if is_low_rank(state.get("compression")) and "gradient_exchange" not in state and "min_rate" not in state:
        of_then = {"compression": state["compression"], "options": {"rank": state.get("low_rank")}}
        return {**state, "gradient_exchange": of_then}
    return state


def is_low_rank(compression: object) -> bool:
    """Return whether a state's compression is of low rank, such as PowerSGD, whose hook is PyTorch's."""
    return isinstance(compression, str) and compression in COMPRESSIONS and COMPRESSIONS[compression].low_rank


def is_tensors(values: object) -> bool:
    """Return whether a value is a mapping of tensors by key."""
    return isinstance(values, Mapping) and all(isinstance(value, torch.Tensor) for value in values.values())


def _shown(value: object) -> str:
    return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
