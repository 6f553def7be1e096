"""Short runs that would tell which of several layouts is the fastest, where the model does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.planning.compare.layout_difference import ratio_in_words, resolved_ratio
from paceline.planning.search.choice import Choice, DecidingRun
from paceline.strategy.parallelism import DIVIDING
from paceline.strategy.strategy import Strategy
from paceline.units import format_seconds

STEPS = 20
"""Steps of a run. The first of them warm the machines up, and the median of the others counts."""
MOST = 3
"""Runs that are named."""


Targets = Callable[[Choice], Sequence[str]]
"""Function that names the frameworks that run a choice, those to prefer first."""


def deciding_runs(best: Choice, tied: Sequence[Choice], targets: Targets | None = None) -> tuple[DecidingRun, ...]:
    """Return the runs that would decide between the best and others that tie with it, the best first; none without any.

    Args:
        tied: choices that the model does not tell from the best, the fastest first. Choices on other machines or of
            another batch are left out.
        targets: if given, all runs are for one target that runs the best and as many others as any; none without one.
    """
    job = best.cluster, best.strategy.global_batch_size
    others = [choice for choice in tied if (choice.cluster, choice.strategy.global_batch_size) == job]
    others = [choice for choice in others if choice.strategy != best.strategy]
    target = ""
    if targets:
        target, others = _common_target(best, others, targets)
    if not others or not max(choice.strategy.simplicity[0] for choice in (best, *others)):
        return ()
    chosen = [others[0], *(choice for choice in others[1:] if _sizes(choice.strategy) != _sizes(others[0].strategy))]
    first = DecidingRun(best, STEPS, "the step that the others must beat", target)
    return (first, *(DecidingRun(choice, STEPS, _told(choice, best), target) for choice in chosen[: MOST - 1]))


def _common_target(best: Choice, others: Sequence[Choice], targets: Targets) -> tuple[str, list[Choice]]:
    """Return the target of the best that runs most of the others, and these."""
    of = {id(choice): targets(choice) for choice in others}
    able = {target: [choice for choice in others if target in of[id(choice)]] for target in targets(best)}
    target = max(able, key=lambda name: len(able[name]), default="")
    return target, able.get(target, [])


def _sizes(strategy: Strategy) -> tuple[int, ...]:
    return tuple(getattr(strategy.parallelism, name) for name in DIVIDING)


def _told(choice: Choice, best: Choice) -> str:
    """Return what the step of a choice tells: the predicted ratio, what the model resolves, and how a run decides."""
    one, other = choice.prediction, best.prediction
    ratio, resolved = one.step_time_s / other.step_time_s, resolved_ratio(one, other)
    words = ratio_in_words(ratio)
    return (
        f"predicted {words} ({format_seconds(one.step_time_s)} against {format_seconds(other.step_time_s)} a step), and the "
        f"model tells apart {resolved - 1:.0%}; the better if its step is shorter than that of run 1"
    )
