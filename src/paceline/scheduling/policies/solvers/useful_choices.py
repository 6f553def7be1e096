"""Choices of an integer program, and those of them that can matter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array, Bools, Ints


@dataclass(frozen=True, slots=True)
class Choices:
    """Possible allocations of each job. Arrays have one entry per choice.

    Attributes:
        job: number of the job.
        devices, type_index: devices it takes, and their type.
        cost: cost of the choice. A job without a choice costs 0.
        fixed: True if it must be taken; it is then the job's only choice.
    """

    job: Ints
    devices: Ints
    type_index: Ints
    cost: Array
    fixed: Bools

    def of(self, rows: Ints) -> Choices:
        """Return some of the choices."""
        return Choices(self.job[rows], self.devices[rows], self.type_index[rows], self.cost[rows], self.fixed[rows])


def undominated(choices: Choices) -> Ints:
    """Return the choices that no choice of the job with fewer devices of the type undercuts or equals.

    They come by job, then type, then devices, and their costs fall with the devices.
    """
    lines = choices.job * (int(choices.type_index.max(initial=0)) + 1) + choices.type_index
    steps = np.diff(lines)
    if (steps < 0).any() or ((steps == 0) & (np.diff(choices.devices) < 0)).any():
        rows = np.lexsort((choices.cost, choices.devices, lines))
    else:
        rows = np.arange(len(lines))
    line, cost = lines[rows], choices.cost[rows]
    least, distance = cost.copy(), 1  # least cost up to each choice of its line, by doubled distances
    while distance < len(rows) and (joined := line[distance:] == line[:-distance]).any():
        earlier = np.where(joined, least[:-distance], np.inf)
        np.minimum(least[distance:], earlier, out=least[distance:])
        distance *= 2
    kept = np.ones(len(rows), bool)
    kept[1:] = (line[1:] != line[:-1]) | (cost[1:] < least[:-1])
    return rows[kept]


def convex(choices: Choices) -> Ints:
    """Return the choices on the lower convex hull of each job and type, from 0 devices at cost 0 on.

    No other choice is the best at any price of a device.

    Args:
        choices: as ``undominated`` returns them.
    """
    lines = choices.job * (int(choices.type_index.max(initial=0)) + 1) + choices.type_index
    rows, on_hull = np.arange(len(lines)), np.ones(len(lines), bool)
    while rows.size:  # lines that lost no choice are done
        devices, cost, line = choices.devices[rows].astype(float), choices.cost[rows], lines[rows]
        first = np.diff(line, prepend=-1) != 0
        added, change = devices.copy(), cost.copy()
        added[1:] -= np.where(first[1:], 0.0, devices[:-1])
        change[1:] -= np.where(first[1:], 0.0, cost[:-1])
        slope = change / added
        kept = np.ones(len(rows), bool)
        kept[:-1] = first[1:] | (slope[1:] > slope[:-1])
        starts = np.flatnonzero(first)
        same = np.repeat(np.logical_and.reduceat(kept, starts), np.diff(starts, append=len(rows)))
        on_hull[rows[~kept]] = False
        rows = rows[kept & ~same]
    return np.flatnonzero(on_hull)
