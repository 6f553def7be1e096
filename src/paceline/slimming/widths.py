"""Which structures go so that a budget of latency is met: at each step those that save the most time for what they matter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from paceline.errors import UserError
from paceline.slimming.structures import Structure, Structures
from paceline.units import format_seconds


def widths_for(
    structures: Structures,
    importance: Mapping[int, float],
    seconds: Callable[[Collection[int]], float],
    budget_s: float,
    round_to: int = 8,
) -> set[int]:
    """Numbers of the structures to remove.

    A layer loses its least important structures, so many at once that its width is a multiple of the target's vector: what is
    beyond a whole vector costs as much as a whole one.

    Args:
        importance: of each structure by its number, at least 0, such as its norm; beside others of its own layer it counts.
        seconds: latency of the network without some structures (``LayerTimes.seconds``).
        budget_s: of the latency.
        round_to: a width is a multiple of it, or what it was.

    Raises:
        UserError: no widths meet the budget; the least that can be met is named.
    """
    ranked = {layer: sorted(every, key=lambda each: importance[each.number]) for layer, every in structures.layers().items()}
    totals = {layer: sum(importance[each.number] for each in every) or 1.0 for layer, every in ranked.items()}
    taken = dict.fromkeys(ranked, 0)
    removed: set[int] = set()
    now = seconds(removed)
    while now > budget_s:
        best: tuple[float, str, int, float] | None = None
        for layer, every in ranked.items():
            many, after = taken[layer], now
            while after >= now and (more := _next(every, many, round_to)):  # fewer may take as long, up to a whole vector
                many += more
                part = every[taken[layer] : many]
                after = seconds(removed | {each.number for each in part})
            if after >= now:
                continue
            many -= taken[layer]
            lost = sum(importance[each.number] for each in part) / totals[layer]
            worth = (now - after) / max(lost, 1e-12)
            if best is None or worth > best[0]:
                best = worth, layer, many, after
        if best is None:
            least = f"the least that its structures allow is {format_seconds(now)}"
            raise UserError(f"a latency of {format_seconds(budget_s)} cannot be met", f"give a larger budget; {least}")
        _, layer, many, now = best
        removed |= {each.number for each in ranked[layer][taken[layer] : taken[layer] + many]}
        taken[layer] += many
    return removed


def _next(every: list[Structure], gone: int, round_to: int) -> int:
    """How many structures go at once: to the next multiple below; 0: none can."""
    width = max(len(part.indices) for part in every[0].slices if part.parameter == every[0].layer) if every else 1
    step = max(round_to // width, 1)
    left = len(every) - gone
    target = (left - 1) // step * step
    return left - target if target else 0


__all__ = ["widths_for"]
