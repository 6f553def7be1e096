"""Which structures go so that a budget is met: those that matter least for what they cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import accumulate
from math import log

from paceline.errors import UserError
from paceline.slimming.structures import Structure, Structures
from paceline.units import format_seconds

PHASES = 10
"""On the way to the budget what a layer's structures cost is counted anew so often: it falls with the widths beside them."""


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
    beyond a whole vector costs as much as a whole one. What has no importance goes even where the budget is met. A part of what
    a layer still has counts, not of what it had: else the cheapest layer would be emptied.

    Args:
        importance: of each structure by its number, at least 0, such as its norm; beside others of its own layer it counts.
        cost: of the network without some structures: ``LayerTimes.seconds``, or bytes.
        budget: of the cost. ``show``: writes a cost.
        round_to: a width is a multiple of it, what it was, or below it a power of two.

    Raises:
        UserError: no widths meet the budget; the least that can be met is named.
    """
    removed, now = nearest_widths(structures, importance, cost, budget, round_to)
    if now > budget:
        least = f"the least that its structures allow is {show(now)}"
        raise UserError(f"a budget of {show(budget)} cannot be met", f"give a larger budget; {least}")
    return removed


def nearest_widths(
    structures: Structures,
    importance: Mapping[int, float],
    cost: Callable[[Collection[int]], float],
    budget: float,
    round_to: int = 8,
) -> tuple[set[int], float]:
    """As ``widths_for``, with the cost that is left; where the budget cannot be met, the nearest."""
    blocks = {layer: _blocks(every, importance, round_to) for layer, every in structures.layers().items()}
    members = {layer: [each.number for each in every] for layer, every in structures.layers().items()}
    removed: set[int] = set()
    for layer, each in blocks.items():
        while each and not any(importance[number] for number in each[0]):
            removed |= set(each.pop(0))
        blocks[layer] = each
    now = cost(removed)
    for left in range(PHASES, 0, -1):
        if now <= budget:
            break
        aim = now * (budget / now) ** (1 / left)
        totals = {layer: sum(importance[each] for each in every if each not in removed) for layer, every in members.items()}
        order = _order(blocks, importance, totals, now, removed, cost)
        if not order:
            break
        parts = (set(blocks[layer][place]) for layer, place in order)
        count = _first(list(accumulate(parts, set.union, initial=removed)), cost, aim)
        for layer, _ in order[:count]:
            removed |= set(blocks[layer].pop(0))
        now = cost(removed)
    return removed, now


def _order(
    blocks: Mapping[str, list[list[int]]],
    importance: Mapping[int, float],
    totals: Mapping[str, float],
    now: float,
    removed: set[int],
    cost: Callable[[Collection[int]], float],
) -> list[tuple[str, int]]:
    """Blocks that are left, by layer and place, those first that matter least for what they save."""
    scored = []
    for layer, every in blocks.items():
        saved = (now - cost(removed | set(every[0]))) / len(every[0]) if every else 0.0
        left, last = totals[layer], 0.0
        for place, block in enumerate(every if saved > 0 else ()):
            after = max(left - sum(importance[number] for number in block), 1e-12 * left)
            last = max(last, log(left / after) / (saved * len(block)))  # a layer's blocks keep their order
            left = after
            scored.append((last, layer, place))
    return [(layer, place) for _, layer, place in sorted(scored, key=lambda each: (each[0], each[2]))]


def _first(every: list[set[int]], cost: Callable[[Collection[int]], float], aim: float) -> int:
    """Place of the first whose cost is at most ``aim``, in a list of falling costs; else of the last."""
    low, high = 0, len(every) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if cost(every[middle]) <= aim else (middle + 1, high)
    return low


def _blocks(every: list[Structure], importance: Mapping[int, float], round_to: int) -> list[list[int]]:
    """What goes together, the least important first: down to the next multiple, below one vector to a power of two."""
    ranked = [each.number for each in sorted(every, key=lambda each: importance[each.number])]
    width = max(len(part.indices) for part in every[0].slices if part.parameter == every[0].layer)
    blocks = []
    while len(ranked) > 1:
        step = max(round_to // width, 1)
        while step >= len(ranked):
            step = (step + 1) // 2
        count = len(ranked) - (len(ranked) - 1) // step * step
        blocks.append(ranked[:count])
        ranked = ranked[count:]
    return blocks


__all__ = ["nearest_widths", "widths_for"]
