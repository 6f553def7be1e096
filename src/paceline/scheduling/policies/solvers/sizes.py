"""Numbers of devices on which a job can run."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from paceline.array_types import Array, Ints
from paceline.errors import UserError, shorten
from paceline.scheduling.state import State


def on_one_type(state: State, index: int) -> list[int]:
    """Return the device types that a job may use, its present one first."""
    job, held = state.jobs[index], int(state.type_index[index])
    legal = [group for group, name in enumerate(state.fleet.types) if job.may_use(name)]
    return sorted(legal, key=lambda group: group != held)


def goodputs(state: State, index: int, group: int, most: int) -> Array:
    """Return the goodput on 0 to ``most`` devices, or to the most that the job may use."""
    outlook = state.outlooks[index]
    return outlook.goodput(group, max(0, min(most, outlook.max_devices())))


def known_seconds(state: State, index: int, group: int, most: int) -> Array:
    """Return the seconds to the end on 0 to ``most`` devices, or to the most that the job may use.

    Raises:
        UserError: unknown remaining work.
    """
    outlook = state.outlooks[index]
    seconds = outlook.seconds_left(group, max(0, min(most, outlook.max_devices())))
    if np.isnan(seconds).any():
        raise UserError(
            f"the remaining work of job {shorten(state.jobs[index].name, 40)!r} is unknown",
            "simulate with `knowledge` measured, or use las, fifo or goodput, which do not need it",
        )
    return seconds


def grown(speed: Array) -> Ints:
    """Return the sizes on which a job is faster than on every smaller one, ascending; shape (sizes,)."""
    before = np.concatenate([[0.0], np.maximum.accumulate(speed)[:-1]])
    return np.flatnonzero(speed > before)


def one_type(state: State, name: str, others: Iterable[str]) -> int:
    """Return the devices of the only type.

    Raises:
        UserError: several device types.
    """
    if len(state.fleet.groups) > 1:
        raise UserError(f"the policy {name} shares out devices of one type only", f"use {' or '.join(others)}")
    return int(state.capacity[0])
