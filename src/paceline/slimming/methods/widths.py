"""Choice of the structures to remove for a budget, in increasing order of importance per saving."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate, takewhile
from math import log, log1p

from paceline.errors import UserError
from paceline.slimming.structures.structures import RemovableStructure, Structures
from paceline.units import format_seconds

FLOOR = 1 / 16
"""Share of its width that a removed residual branch counts as keeping: the shortcut remains."""
CENTRE = 1 / 16
"""Weight of a kernel's centre, as a share of a row: alone it sees a single position. With weight 1, small networks of 3x3
kernels lost a point more than by filters alone.
"""
PHASES = 10
"""Number of updates of the costs of structures on the way to the budget. Costs fall with the widths of neighbours."""


def widths_for(
    structures: Structures,
    importance: Mapping[int, float],
    cost: Callable[[Collection[int]], float],
    budget: float,
    round_to: int = 8,
    show: Callable[[float], str] = format_seconds,
    equal: Sequence[Sequence[str]] = (),
) -> set[int]:
    """Return the numbers of the structures to remove.

    A residual branch may be removed whole. Any other layer keeps some structures. It loses its least important ones in groups,
    so that its width stays a multiple of the target's vector: part of a vector costs as much as a whole one. Structures of zero
    importance are removed even if the budget is met. Importance counts relative to a layer's remaining structures: else the
    cheapest layer would be emptied. A kernel loses its pairs one by one, from the outside in.

    Args:
        importance: importance of each structure by its number, at least 0, such as its norm, relative to its layer. For a pair
            of a kernel: of one of its rows, relative to the rows that always stay (``StructureNorms.importance``).
        cost: cost of the network without some structures: ``LayerTimes.seconds``, or bytes.
        budget: budget of the cost. ``show``: writes a cost.
        round_to: a width is a multiple of it, unchanged, or a smaller power of two. ``equal``: as of ``nearest_widths``.

    Raises:
        UserError: no widths meet the budget; the least that can be met is named.
    """
    removed, now = nearest_widths(structures, importance, cost, budget, round_to, equal)
    if now > budget:
        least = f"the least that its structures allow is {show(now)}"
        fix = f"give a larger budget{', or `widths` free, which removes more' if equal else ''}; {least}"
        raise UserError(f"a budget of {show(budget)} cannot be met", fix)
    return removed


def nearest_widths(
    structures: Structures,
    importance: Mapping[int, float],
    cost: Callable[[Collection[int]], float],
    budget: float,
    round_to: int = 8,
    equal: Sequence[Sequence[str]] = (),
) -> tuple[set[int], float]:
    """Return the widths as ``widths_for`` does, with their cost; the nearest ones if the budget cannot be met.

    Args:
        equal: names of layers, with equally many structures, that keep one width: they lose their groups together.
    """
    layers = structures.layers()
    grouped = {name for names in equal for name in names}
    members = [[layers[name] for name in names] for names in equal] + [[layers[name]] for name in layers if name not in grouped]
    blocks = [_joint_blocks(structures, every, importance, round_to) for every in members]
    free = [each for every in blocks for each in _leading_zeros(every, importance)]
    free += [list(branch.numbers) for branch in structures.branches if not any(importance[each] for each in branch.numbers)]
    removed: set[int] = set().union(*free)
    now = cost(removed)
    for left in range(PHASES, 0, -1):
        if now <= budget:
            break
        aim = now * (max(budget, 0.0) / now) ** (1 / left)  # below nothing if what stays anyway costs more
        steps = _order(structures, members, blocks, importance, now, removed, cost)
        if not steps:
            break
        count = _first(list(accumulate(steps, set.union, initial=removed)), cost, aim)
        removed = removed.union(*steps[:count])
        now = cost(removed)
    return removed, now


def _leading_zeros(every: list[list[int]], importance: Mapping[int, float]) -> Iterator[list[int]]:
    return takewhile(lambda block: not any(importance[number] for number in block), every)


def _order(
    structures: Structures,
    members: list[list[list[RemovableStructure]]],
    blocks: list[list[list[int]]],
    importance: Mapping[int, float],
    now: float,
    removed: set[int],
    cost: Callable[[Collection[int]], float],
) -> list[set[int]]:
    """Return the remaining blocks and whole branches, in increasing order of importance per saving.

    Args:
        members: layers that lose their blocks together. ``blocks``: of each such group, in order.
    """
    scored = []
    for every, layers in zip(blocks, members, strict=True):
        waiting = [block for block in every if not removed.issuperset(block)]
        saved = (now - cost(removed.union(waiting[0]))) / len(waiting[0]) if waiting else 0.0
        shares = [_counts(structures, layer, importance) for layer in layers]
        left = [
            stays + sum(counts[each.number] for each in layer if each.number not in removed)
            for (counts, stays), layer in zip(shares, layers, strict=True)
        ]
        numbers = [{each.number for each in layer} for layer in layers]
        last = 0.0
        for block in waiting if saved > 0 else ():
            lost = 0.0
            for place, ((counts, _), own) in enumerate(zip(shares, numbers, strict=True)):
                after = max(left[place] - sum(counts[number] for number in block if number in own), 1e-12 * left[place])
                lost += log(left[place] / after) if left[place] else 0.0
                left[place] = after
            last = max(last, lost / (saved * len(block)))  # a layer's blocks keep their order
            scored.append((last, set(block)))
    for branch in structures.branches:
        alive = branch.numbers.difference(removed)
        saved = now - cost(removed | alive) if alive else 0.0
        if saved > 0:
            scored.append((log1p(len(alive) / (FLOOR * len(branch.numbers))) / saved, set(alive)))
    return [block for _, block in sorted(scored, key=lambda each: each[0])]


def _counts(
    structures: Structures, members: list[RemovableStructure], importance: Mapping[int, float]
) -> tuple[Mapping[int, float], float]:
    """Return the weight of each structure of a layer, and of its fixed part. In a kernel each row counts, the centre less."""
    if not members[0].nested:
        return importance, 0.0
    part = members[0].slices[0]
    rows = {each.number: len(each.slices[0].indices) for each in members}
    stays = len(structures.units[part.parameter][part.dim]) - sum(rows.values()) - 1 + CENTRE
    return {number: count * importance[number] for number, count in rows.items()}, stays


def _first(every: list[set[int]], cost: Callable[[Collection[int]], float], aim: float) -> int:
    """Return the index of the first cost of at most ``aim`` in a falling list; the last index if there is none."""
    low, high = 0, len(every) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if cost(every[middle]) <= aim else (middle + 1, high)
    return low


def _joint_blocks(
    structures: Structures, layers: list[list[RemovableStructure]], importance: Mapping[int, float], round_to: int
) -> list[list[int]]:
    """Return the groups of several layers that are removed together."""
    every = [_blocks(layer, importance, round_to, structures.least.get(layer[0].layer, 0)) for layer in layers]
    return [[number for block in blocks for number in block] for blocks in zip(*every, strict=True)]


def _blocks(every: list[RemovableStructure], importance: Mapping[int, float], round_to: int, least: int = 0) -> list[list[int]]:
    """Return groups that are removed together, the least important first: down to the next multiple, below one vector to a
    power of two. The pairs of a kernel come one by one, and so do structures of which a number must stay.

    Args:
        least: how many stay, if the network requires more than one.
    """
    if every[0].nested:
        return [[each.number] for each in every]
    ranked = [each.number for each in sorted(every, key=lambda each: importance[each.number])]
    if least:
        return [[number] for number in ranked[: len(ranked) - least]]
    width = every[0].rows
    blocks = []
    while len(ranked) > 1:
        step = max(round_to // width, 1)
        while step >= len(ranked):
            step = (step + 1) // 2
        count = len(ranked) - (len(ranked) - 1) // step * step
        blocks.append(ranked[:count])
        ranked = ranked[count:]
    return blocks
