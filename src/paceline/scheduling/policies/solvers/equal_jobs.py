"""Choices of jobs near prices, counted over equal jobs.

Jobs of one kind have the same choices at the same costs, and only the number of them that takes each choice matters. So the
integer program has one integer per choice of a kind instead of one binary variable per choice of a job. Jobs that have a single
choice near the prices take it and are no part of the program.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array, Ints
from paceline.scheduling.policies.solvers.highs import integers
from paceline.scheduling.policies.solvers.useful_choices import Choices

DIGITS = 9
"""Decimals of a cost, relative to the largest, up to which costs are equal."""


@dataclass(frozen=True, slots=True)
class PricedChoices:
    """Choices at prices, one job after another.

    Attributes:
        prices: price of a device of each type. ``capacity``: devices of each type.
        beyond: cost of each choice at the prices, beyond the least of its job, which may be to wait at cost 0.
        waits: the same of waiting, of each job.
    """

    choices: Choices
    prices: Array
    capacity: Ints
    beyond: Array
    waits: Array

    @classmethod
    def at(cls, choices: Choices, prices: Array, capacity: Ints) -> PricedChoices:
        """Price the choices."""
        paid = choices.cost + prices[choices.type_index] * choices.devices
        first = np.flatnonzero(np.diff(choices.job, prepend=-1))
        least = np.minimum(np.minimum.reduceat(paid, first), 0.0)
        return cls(choices, prices, capacity, paid - np.repeat(least, np.diff(first, append=len(paid))), -least)


def least_near(priced: PricedChoices, tolerance: float, time_s: float) -> Ints | None:
    """Return the choices of the least total that are at most ``tolerance`` beyond the least of their job.

    Returns:
        Indices into the choices; None if these choices do not fit the devices, or time is over.
    """
    near = _near(priced, tolerance)
    groups = _groups(near)
    firsts = np.array([jobs[0] for jobs in groups])
    sizes, jobs = near.count[firsts], np.array([len(jobs) for jobs in groups])
    columns = np.repeat(near.first[firsts] - (sizes.cumsum() - sizes), sizes) + np.arange(int(sizes.sum()))
    group = np.repeat(np.arange(len(groups)), sizes)
    taken = np.where(sizes[group] == 1, jobs[group], 0)
    open_ = np.flatnonzero(sizes[group] > 1)
    if open_.size:
        found = _counted(priced, near, columns, group, jobs, taken, open_, time_s)
        if found is None:
            return None
        taken[open_] = found
    used = np.bincount(near.type_index[columns], near.devices[columns] * taken, len(priced.capacity))
    if (used > priced.capacity).any():
        return None
    rows: list[int] = []
    ends = sizes.cumsum()
    counts, sources = taken.tolist(), near.row
    for members, end, size in zip(groups, ends.tolist(), sizes.tolist(), strict=True):
        place = 0
        for offset in range(size):
            for job in members[place : place + counts[end - size + offset]]:
                rows.append(int(sources[near.first[job] + offset]))
            place += counts[end - size + offset]
    chosen = np.array(rows, np.int64)
    return np.sort(chosen[chosen >= 0])


@dataclass(frozen=True, slots=True)
class _Near:
    """Choices near the prices, by job, then type, then devices.

    Attributes:
        row: index of the choice; -1: to wait.
        first, count: first choice of each job, and their number.
    """

    row: Ints
    type_index: Ints
    devices: Ints
    beyond: Array
    first: Ints
    count: Ints


def _near(priced: PricedChoices, tolerance: float) -> _Near:
    choices = priced.choices
    rows, waits = np.flatnonzero(priced.beyond <= tolerance), np.flatnonzero(priced.waits <= tolerance)
    number = np.cumsum(np.diff(choices.job, prepend=choices.job[0]) != 0)
    job = np.concatenate([number[rows], waits])
    row = np.concatenate([rows, np.full(len(waits), -1)])
    types = np.concatenate([choices.type_index[rows], np.zeros(len(waits), np.int64)])
    devices = np.concatenate([choices.devices[rows], np.zeros(len(waits), np.int64)])
    beyond = np.concatenate([priced.beyond[rows], priced.waits[waits]])
    order = np.lexsort((devices, types, job))
    first = np.flatnonzero(np.diff(job[order], prepend=-1))
    count = np.diff(first, append=len(order))
    return _Near(row[order], types[order], devices[order], beyond[order], first, count)


def _groups(near: _Near) -> list[list[int]]:
    """Return the jobs of each kind: those with equal choices."""
    scale = 10.0**DIGITS / max(float(near.beyond.max(initial=0.0)), 1.0)
    keys = np.stack([near.type_index, near.devices, np.round(near.beyond * scale).astype(np.int64)], axis=1)
    found: dict[bytes, list[int]] = {}
    for job, (start, count) in enumerate(zip(near.first.tolist(), near.count.tolist(), strict=True)):
        found.setdefault(keys[start : start + count].tobytes(), []).append(job)
    return list(found.values())


def _counted(
    priced: PricedChoices, near: _Near, columns: Ints, group: Ints, jobs: Ints, taken: Ints, open_: Ints, time_s: float
) -> Ints | None:
    """Return how many jobs of each kind take each open choice.

    Args:
        columns, group, taken: choices of the kinds, their kind, and the number of jobs that take it for lack of others.
        jobs: number of jobs of each kind. ``open_``: choices that are left to decide, as indices into ``columns``.
    """
    from scipy.sparse import csr_array

    types, devices, beyond = (part[columns] for part in (near.type_index, near.devices, near.beyond))
    left = priced.capacity - np.bincount(types, devices * taken, len(priced.capacity))
    if (left < 0).any():
        return None
    worth = beyond - priced.prices[types] * devices
    kinds, row = np.unique(group[open_], return_inverse=True)
    count = len(open_)
    entries = np.concatenate([np.ones(count), devices[open_].astype(float)])
    places = np.concatenate([row, len(kinds) + types[open_]]), np.tile(np.arange(count), 2)
    table = csr_array((entries, places), shape=(len(kinds) + len(left), count))
    least = np.concatenate([jobs[kinds], np.full(len(left), -np.inf)])
    most = np.concatenate([jobs[kinds], left])
    rest = float((worth * taken).sum() - priced.waits.sum())
    return integers(worth[open_], table, least, most, jobs[group[open_]], time_s, rest)
