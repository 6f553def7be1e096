"""Which structures go so that a budget of latency is met: at each step those that save the most time for what they matter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from paceline.errors import UserError
from paceline.slimming.structures import Structure, Structures
from paceline.units import format_seconds


def widths_for(
    structures: Structures,
    importance: Mapping[int, float],
    cost: Callable[[Collection[int]], float],
    budget: float,
    round_to: int = 8,
    show: Callable[[float], str] = format_seconds,
) -> set[int]:
    """Numbers of the structures to remove.

    A layer loses its least important structures, so many at once that its width is a multiple of the target's vector: what is
    beyond a whole vector costs as much as a whole one. What has no importance goes even where the budget is met.

    Args:
        importance: of each structure by its number, at least 0, such as its norm; beside others of its own layer it counts.
        cost: of the network without some structures: ``LayerTimes.seconds``, or bytes.
        budget: of the cost. ``show``: writes a cost.
        round_to: a width is a multiple of it, what it was, or below it a power of two.

    Raises:
        UserError: no widths meet the budget; the least that can be met is named.
    """
    ranked = {layer: sorted(every, key=lambda each: importance[each.number]) for layer, every in structures.layers().items()}
    totals = {layer: sum(importance[each.number] for each in every) or 1.0 for layer, every in ranked.items()}
    taken = dict.fromkeys(ranked, 0)
    removed: set[int] = set()
    now = cost(removed)
    while True:
        best: tuple[float, str, int, float] | None = None
        for layer, every in ranked.items():
            many = _next(every, taken[layer], round_to)
            if not many:
                continue
            part = every[taken[layer] : taken[layer] + many]
            lost = sum(importance[each.number] for each in part) / totals[layer]
            if lost and now <= budget:
                continue
            after = cost(removed | {each.number for each in part})
            worth = (now - after) / max(lost, 1e-12)
            if after < now and (best is None or worth > best[0]):
                best = worth, layer, many, after
        if best is None:
            break
        _, layer, many, now = best
        removed |= {each.number for each in ranked[layer][taken[layer] : taken[layer] + many]}
        taken[layer] += many
    if now > budget:
        least = f"the least that its structures allow is {show(now)}"
        raise UserError(f"a budget of {show(budget)} cannot be met", f"give a larger budget; {least}")
    return removed


def _next(every: list[Structure], gone: int, round_to: int) -> int:
    """How many structures go at once: to the next multiple below, and below one vector to the next power of two; 0: none."""
    width = max(len(part.indices) for part in every[0].slices if part.parameter == every[0].layer) if every else 1
    step = max(round_to // width, 1)
    left = len(every) - gone
    while step >= left > 1:
        step = (step + 1) // 2
    return left - (left - 1) // step * step if left > 1 else 0


__all__ = ["widths_for"]
