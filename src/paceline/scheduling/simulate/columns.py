"""The jobs in a simulated cluster as columns of one table, and how they change while time passes."""

from __future__ import annotations

import math

import numpy as np

from paceline.array_types import Array

COLUMNS = ("arrival", "requested", "held", "type", "attained", "restarts", "delay", "speed", "to_next", "slowed", "restart")
"""Rows of the table, which has a column a job; behind them a row for each device type: seconds on it."""
(ARRIVAL, REQUESTED, HELD, TYPE, ATTAINED, RESTARTS, DELAY, SPEED, TO_NEXT, SLOWED, RESTART) = range(len(COLUMNS))
_CELLS = 1 << 18
"""Numbers at once of rounds that are passed together."""
MOST_ROUNDS = 2_000_000
"""Up to this round, the boundaries are exact multiples."""


def advance(columns: Array, seconds: float) -> bool:
    """Let time pass in which no job changes its speed. Whether any job works in it."""
    types = np.arange(len(columns) - len(COLUMNS))[:, None]
    columns[ATTAINED] += columns[HELD] * seconds
    columns[len(COLUMNS) :] += (columns[TYPE] == types) * seconds
    delay = columns[DELAY]
    done = np.maximum(seconds - delay, 0.0) * columns[SPEED]
    np.maximum(delay - seconds, 0.0, out=delay)
    columns[TO_NEXT] -= done
    return bool(done.any())


def advance_rounds(columns: Array, moments: Array) -> None:
    """Let rounds pass in which nothing is decided, no job starts and none changes its speed.

    The numbers are those of as many calls of ``advance``, to the last digit.

    Args:
        moments: the present one, then the boundary of each round.
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


def crossings(columns: Array, time_s: float) -> Array:
    """When each job reaches its next change; infinite where it does not work."""
    speed = columns[SPEED]
    moments = np.full(len(speed), math.inf)
    np.divide(columns[TO_NEXT], speed, out=moments, where=speed > 0)
    return np.asarray(time_s + columns[DELAY] + moments)


__all__ = [
    *("ARRIVAL", "ATTAINED", "COLUMNS", "DELAY", "HELD", "REQUESTED", "RESTART", "RESTARTS", "SLOWED", "SPEED", "TO_NEXT"),
    *("MOST_ROUNDS", "TYPE", "advance", "advance_rounds", "crossings"),
]
