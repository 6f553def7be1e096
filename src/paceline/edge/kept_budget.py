"""Removal that keeps a budget of latency: the small network is timed in turns with the whole one before it is trained."""

from __future__ import annotations

from torch import nn

from paceline.errors import UserError
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.methods import LATENCIES
from paceline.slimming.slim import Slim

TRIES = 3
"""Most removals for one budget."""
MARGIN = 0.02
"""Share of the budget that a further removal leaves free. An assumption: nobody measured how far repeated ratios differ."""


def shrunk(slim: Slim) -> tuple[Slim, nn.Module, tuple[str, ...]]:
    """Shrink a network until its measured share of the whole network's latency is within the budget.

    Latency does not depend on the weights, so no training is lost.

    Returns:
        The ``Slim`` with the plan, the small network in eval mode, and a note if more was removed than the tables said.
    """
    small = slim.shrink().eval()
    if slim.budget.kind not in LATENCIES:
        return slim, small, ()
    goal = slim.goal / slim.whole.median_s
    aim, first, note = goal, 0.0, ""
    for _ in range(TRIES):
        found = slim.latency({"whole": slim.model, "small": small})
        share = found["small"].median_s / found["whole"].median_s
        first = first or share
        if share <= goal:
            break
        aim *= goal / share * (1 - MARGIN)
        tighter = slim.to(Budget("latency", aim * slim.whole.median_s))
        try:
            slim, small = tighter, tighter.shrink().eval()
        except UserError:  # nothing more can be removed
            break
        note = f"After the removal the network measured {first / goal:.2f} times the budget, so more was removed."
    return slim, small, (note,) if note else ()


def limit(budget: Budget, whole_s: float, clock: float) -> float | None:
    """Return the latency that a budget allows at the machine's present speed; None for a size or an accuracy.

    Args:
        whole_s: the whole network now. ``clock``: the same relative to before training.
    """
    return {"latency": budget.value * clock, "speedup": whole_s / budget.value}.get(budget.kind)
