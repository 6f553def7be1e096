"""Maximise a function of an integer by tabu search, which continues beyond a local maximum.

Glover, Tabu search, part I, ORSA Journal on Computing 1 (1989): move to the best neighbour that was not visited, even if it is
worse. Neighbours lie 1, 4, 16, ... away.
"""

from __future__ import annotations

from collections.abc import Callable

PATIENCE = 4
"""Moves without a new best value after which the search ends."""


def tabu_search(value: Callable[[int], float], size: int, start: int, patience: int = PATIENCE) -> dict[int, float]:
    """Return the values of the tried integers from 0 to ``size``, each evaluated once. No neighbour of the best one is better.
    If the function has one maximum, the best one is it.
    """
    tried = {start: value(start)}
    steps = [sign * 4**power for power in range(size.bit_length()) for sign in (1, -1) if 4**power < size]
    visited, at, best, left = {start}, start, tried[start], patience
    while left:
        near = [at + step for step in steps if 0 <= at + step < size and at + step not in visited]
        if not near:
            break
        for place in near:
            if place not in tried:
                tried[place] = value(place)
        at = max(near, key=lambda place: tried[place])
        visited.add(at)
        if tried[at] > best:
            best, left = tried[at], patience
        else:
            left -= 1
    return tried
