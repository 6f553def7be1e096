"""First in, first out as Gavel's simulator runs it: a job takes a type and keeps it, or takes the fastest type that is free.

Its figures depend on how it hands out types, so they stand here and not in ``policies``.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.policies.solvers.time_shares import PUBLISHED, ShareDemand, time_shared
from paceline.scheduling.state import Decision, State

_SHARING = replace(PUBLISHED, fills=False)


def gavel_fifo(state: State) -> Decision:
    """Types do not count. A type may be given to more jobs than it holds; these then share it in turns."""
    return time_shared(state, _kept, replace(_SHARING, shuffled=True))


def gavel_fifo_fastest(state: State) -> Decision:
    """Each job, in order of arrival, gets the fastest type that is free; the first that finds none holds up the rest."""
    return time_shared(state, _fastest, _SHARING)


@dataclass(frozen=True)
class _Held:
    """The type of each job that has one, in the order of their arrivals, and the state of the draws."""

    types: Mapping[str, int]
    draws: Any


def _kept(demand: ShareDemand) -> tuple[Array, Any]:
    names, devices, speed = demand.names, demand.devices.tolist(), demand.speed
    past: _Held = demand.past or _Held({}, random.Random(0).getstate())
    rows = {name: row for row, name in enumerate(names)}
    held = {name: kind for name, kind in past.types.items() if name in rows}
    free = demand.state.capacity.tolist()
    queue = [name for name in names if name not in held]
    for name, kind in past.types.items():
        if name in rows:
            free[kind] -= devices[rows[name]]
        elif queue and devices[rows[queue[0]]] <= free[kind] and speed[rows[queue[0]], kind] > 0:
            held[queue[0]] = kind
            free[kind] -= devices[rows[queue.pop(0)]]
    draws = random.Random()
    draws.setstate(past.draws)
    open_types = [kind for kind in reversed(range(len(free))) if free[kind] > 0]
    while queue and open_types:
        asked = devices[rows[queue[0]]]
        fit = [kind for kind in open_types if free[kind] >= asked]
        if not fit:
            break
        drawn = draws.randrange(len(fit))
        able = [kind for kind in open_types if speed[rows[queue[0]], kind] > 0]
        if not able:
            break
        kind = able[-1]  # not the one that was drawn: so does the published simulator
        held[queue.pop(0)] = kind
        free[kind] -= asked
        if free[kind] == 0:
            open_types.pop(drawn)
    shares = np.zeros_like(speed)
    for name, kind in held.items():
        shares[rows[name], kind] = 1.0
    order = sorted(held, key=rows.__getitem__)
    return shares, _Held({name: held[name] for name in order}, draws.getstate())


def _fastest(demand: ShareDemand) -> tuple[Array, Any]:
    shares, free = np.zeros_like(demand.speed), demand.state.capacity.copy()
    for row, asked in enumerate(demand.devices.tolist()):
        speed = np.where(free >= asked, demand.speed[row], 0.0)
        if not speed.any():
            break
        kind = len(speed) - 1 - int(speed[::-1].argmax())  # of equals the slowest kind, as published
        shares[row, kind] = 1.0
        free[kind] -= asked
    return shares, None


__all__ = ["gavel_fifo", "gavel_fifo_fastest"]
