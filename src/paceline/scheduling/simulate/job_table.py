"""Table of the jobs in a simulated cluster, and its change over time."""

from __future__ import annotations

import math

import numpy as np

from paceline.array_types import Array

COLUMNS = (
    *("arrival", "requested", "held", "type", "attained", "restarts", "delay", "speed", "to_next", "slowed", "restart"),
    *("since", "limit"),
)
"""Rows of the table, which has one column per job. ``since`` is the time of the present start, ``limit`` the longest run. A row
for each device type follows, with the seconds on it."""
(ARRIVAL, REQUESTED, HELD, TYPE, ATTAINED, RESTARTS, DELAY, SPEED, TO_NEXT, SLOWED, RESTART, SINCE, LIMIT) = range(len(COLUMNS))
_CELLS = 1 << 18
"""Numbers per batch of rounds that pass together."""
MOST_ROUNDS = 2_000_000
"""Last round whose boundary is an exact multiple."""


def advance(columns: Array, seconds: float) -> bool:
    """Advance time while no job changes its speed. Return True if any job works meanwhile."""
    types = np.arange(len(columns) - len(COLUMNS))[:, None]
    columns[ATTAINED] += columns[HELD] * seconds
    columns[len(COLUMNS) :] += (columns[TYPE] == types) * seconds
    delay = columns[DELAY]
    done = np.maximum(seconds - delay, 0.0) * columns[SPEED]
    np.maximum(delay - seconds, 0.0, out=delay)
    columns[TO_NEXT] -= done
    return bool(done.any())


def advance_rounds(columns: Array, moments: Array) -> None:
    """Advance over rounds without decisions, starts or changes of speed.

    The result equals that of repeated calls of ``advance``, to the last digit.

    Args:
        moments: present time, then the boundary of each round.
    """
    jobs = columns.shape[1]
    types = np.arange(len(columns) - len(COLUMNS))[:, None]
    rates = np.concatenate([columns[HELD][None], (columns[TYPE] == types).astype(float), -columns[SPEED][None]])
    rows = [ATTAINED, *range(len(COLUMNS), len(columns)), TO_NEXT]
    seconds = np.diff(moments)
    at_once = max(_CELLS // max(rates.size, 1), 1)
    for first in range(0, len(seconds) if jobs else 0, at_once):
        steps = rates[None] * seconds[first : first + at_once, None, None]
        columns[rows] = np.add.accumulate(np.concatenate([columns[rows][None], steps]))[-1]


def limit_moments(columns: Array, time_s: float) -> Array:
    """Return the time at which each running job reaches its limit. Restarts do not count as running."""
    ran_s, starts_s = columns[len(COLUMNS) :].sum(axis=0), (columns[RESTARTS] + 1) * columns[RESTART]
    return np.asarray(np.where(columns[HELD] > 0, time_s + np.maximum(columns[LIMIT] + starts_s - ran_s, 0.0), math.inf))


def crossings(columns: Array, time_s: float) -> Array:
    """Return the time at which each job reaches its next change; inf if it does not work."""
    speed = columns[SPEED]
    moments = np.full(len(speed), math.inf)
    np.divide(columns[TO_NEXT], speed, out=moments, where=speed > 0)
    return np.asarray(time_s + columns[DELAY] + moments)
