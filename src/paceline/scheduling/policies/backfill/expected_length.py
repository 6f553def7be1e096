"""Expected remaining time of jobs: predicted, or as their owners state it."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.state import State

Lengths = Literal["predicted", "stated"]
"""Source that counts first: the prediction of the work left, or the owner's time limit."""
OVERDUE_S = 60.0
"""Remaining time of a job that has run longer than expected."""


def expected_seconds(state: State, index: int, group: int, first: Lengths = "predicted") -> float | None:
    """Return the seconds from a start on a type to the end, its cost included; inf if unknown, None if it cannot run there.

    A prediction of the remaining work comes before the time limit, or after it (``first``), and a stated duration is last.
    """
    job = state.jobs[index]
    predicted = _predicted(state, index, group)
    if predicted == math.inf:
        return None
    ran_s = float(state.run_s[index].sum())
    limit_s = job.limit_s - ran_s if job.limit_s else math.nan
    stated_s = job.duration_s - ran_s if job.duration_s else math.nan
    known = (predicted, limit_s) if first == "predicted" else (limit_s, predicted)
    left_s = next((seconds for seconds in (*known, stated_s) if not math.isnan(seconds)), math.inf)
    runs = state.devices[index] > 0
    start_s = float(state.restarting_s[index] if runs else state.restart_s[index])
    return max(left_s, OVERDUE_S if runs else 0.0) + start_s if left_s <= 0 else left_s + start_s


def expected_ends(state: State, first: Lengths = "predicted") -> Array:
    """Return the expected end of each running job; inf if it is unknown or the job waits. See ``expected_seconds``."""
    ends_s = np.full(len(state.jobs), math.inf)
    held = np.flatnonzero(state.devices)
    if not held.size:
        return ends_s
    types = state.type_index[held]
    if state.fixed is None or np.isnan(rates := state.fixed.rate[held, types]).any():
        for index, group in zip(held.tolist(), types.tolist(), strict=True):
            seconds = expected_seconds(state, index, group, first)
            ends_s[index] = state.time_s + (math.inf if seconds is None else seconds)
        return ends_s
    ran_s = state.run_s[held].sum(axis=1)
    jobs = [state.jobs[index] for index in held.tolist()]
    limits_s, stated_s = np.array([job.limit_s for job in jobs]), np.array([job.duration_s for job in jobs])
    with np.errstate(divide="ignore", invalid="ignore"):
        predicted = np.where(rates > 0, state.fixed.left[held] / rates, math.inf)
    limit_s = np.where(limits_s > 0, limits_s - ran_s, math.nan)
    known = (predicted, limit_s) if first == "predicted" else (limit_s, predicted)
    left_s = known[0]
    for other in (known[1], np.where(stated_s > 0, stated_s - ran_s, math.nan), math.inf):
        left_s = np.where(np.isnan(left_s), other, left_s)
    left_s = np.where(left_s <= 0, OVERDUE_S, left_s) + state.restarting_s[held]
    ends_s[held] = state.time_s + np.where(predicted == math.inf, math.inf, left_s)
    return ends_s


def _predicted(state: State, index: int, group: int) -> float:
    """Return the predicted seconds on the devices asked for; inf if the job cannot run on them, NaN if unknown."""
    asked = int(state.devices[index] or state.requested[index])
    if state.fixed is not None and not math.isnan(rate := float(state.fixed.rate[index, group])):
        return float(state.fixed.left[index]) / rate if rate else math.inf
    outlook = state.outlooks[index]
    return float(outlook.seconds_left(group, asked)[asked]) if asked <= outlook.max_devices() else math.inf
