"""Policy of goodput over device types (Sia, SOSP 2023, section 3.4): one integer program a round over all choices for each job.

The goodputs of a job are divided by its smallest. A configuration that needs a restart counts ``(age - restarts * delay) / (age
+ delay)`` of its goodput. The sum of ``goodput^p`` is optimized over one configuration per job, with a price for waiting jobs.
Jobs grow at most twofold a round, by the ``max_devices`` of their outlook.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.scheduling.fleet import NodeGroup
from paceline.scheduling.job import Job
from paceline.scheduling.policies.solvers.integer_program import TIME_LIMIT_S, least_sum
from paceline.scheduling.policies.solvers.useful_choices import Choices
from paceline.scheduling.speeds.goodput_tables import goodput_on
from paceline.scheduling.state import Decision, Outlook, State

POWER = -0.5
WAITING = 1.1
"""Cost of a job without devices, relative to 1 for its slowest configuration."""
LEAST_VALUE, MOST_COST = 1e-4, 3000.0


def sia(state: State, power: float = POWER, time_limit_s: float = TIME_LIMIT_S) -> Decision:
    """Choose configurations of the least sum of ``goodput^power``.

    Args:
        power: below 0; closer to 0 is less fair.
        time_limit_s: time limit; then the best allocation so far is used, or jobs keep their devices.
    """
    choices = configurations(state)
    cost = np.minimum(np.round(choices.cost**power, 2), MOST_COST)
    weight = np.array([job.weight for job in state.jobs])[choices.job]
    fixed = choices.fixed
    priced = Choices(choices.job, choices.devices, choices.type_index, (cost - WAITING) * weight, fixed)
    taken = least_sum(priced, state.capacity, time_limit_s)
    if taken is None:
        note = f"no allocation in {time_limit_s:g} s: jobs keep what they hold"
        return Decision(devices=state.devices.copy(), type_index=state.type_index.copy(), note=note)
    devices, types = np.zeros(len(state.jobs), np.int64), np.full(len(state.jobs), -1)
    devices[choices.job[taken]], types[choices.job[taken]] = choices.devices[taken], choices.type_index[taken]
    return Decision(devices=devices, type_index=types, order=np.argsort(-devices, kind="stable").tolist(), repack=True)


def configurations(state: State) -> Choices:
    """Return every configuration of every job. ``cost`` holds its goodput over the job's smallest, charged for restarts.

    For a job that needs several devices, fewer devices count as proportionally slower. Otherwise a job of one size would always
    lose against one that can shrink. A job that has not finished its start keeps its devices.
    """
    ages = state.age_s
    restart_s = state.restart_s
    aged = np.maximum(ages - state.restarts * restart_s, 0) / np.maximum(ages + restart_s, 1e-9)
    stays = np.where(ages < restart_s, 1.0, aged)
    tables = _asked(state)
    if not tables.rate.size:
        empty = np.zeros(0, np.int64)
        return Choices(empty, empty, empty, np.zeros(0), np.zeros(0, bool))
    job, size, kind, value, fixed = tables.job, tables.devices, tables.type_index, tables.rate, tables.fixed
    first = np.flatnonzero(np.diff(job, prepend=-1))
    least, slowest = np.minimum.reduceat(size, first), np.minimum.reduceat(value, first)
    scale = np.repeat(least / slowest, np.diff(first, append=len(job)))
    value = np.where(fixed, 1.0, value * scale)
    held, held_type = state.devices[job], state.type_index[job]
    moves = (held > 0) & ~fixed & ((size != held) | (kind != held_type))
    value = np.where(moves, value * stays[job], value)
    return Choices(job, size, kind, np.where(fixed, value, np.maximum(value, LEAST_VALUE)), fixed)


@dataclass(frozen=True, slots=True)
class _GoodputTables:
    """Sizes on which jobs run, by job, then type, then ascending. ``rate``: goodput."""

    job: Ints
    devices: Ints
    type_index: Ints
    rate: Array
    fixed: Bools


def _asked(state: State) -> _GoodputTables:
    """Return the sizes of all jobs with their goodputs. A job that has not finished its start has the present one alone."""
    grids = [node_sizes(group) for group in state.fleet.groups]
    legal_sizes = _SizeTable(grids)
    rows, kinds, fixed = list[int](), list[int](), list[bool]()
    sizes, outlooks = list[Ints](), list[Outlook]()
    held, held_type, starting = state.devices.tolist(), state.type_index.tolist(), (state.restarting_s > 0).tolist()
    there = [int(count) for count in state.capacity]
    groups = [(group, nodes.device, there[group]) for group, nodes in enumerate(state.fleet.groups)]
    for index, (job, outlook) in enumerate(zip(state.jobs, state.outlooks, strict=True)):
        if held[index] and starting[index]:
            rows.append(index)
            kinds.append(held_type[index])
            fixed.append(True)
            sizes.append(np.array([held[index]]))
            continue
        most = outlook.max_devices()
        for group, device, capacity in groups:
            if not job.may_use(device):
                continue
            legal = legal_sizes.of(job, group, min(most, capacity), held[index] if group == held_type[index] else 0)
            if legal.size:
                rows.append(index)
                kinds.append(group)
                fixed.append(False)
                sizes.append(legal)
                outlooks.append(outlook)
    if not rows:
        return _GoodputTables(*(np.zeros(0, np.int64),) * 3, np.zeros(0), np.zeros(0, bool))
    counts, devices = [len(legal) for legal in sizes], np.concatenate(sizes)
    job_of, type_of, is_fixed = (np.repeat(values, counts) for values in (rows, kinds, fixed))
    rate = np.ones(len(devices))
    free = [not starts for starts in fixed]
    rate[~is_fixed] = goodput_on(outlooks, list(compress(kinds, free)), list(compress(sizes, free)))
    runs = rate > 0
    return _GoodputTables(job_of[runs], devices[runs], type_of[runs], rate[runs], is_fixed[runs])


class _SizeTable:
    """Sizes of jobs on each type, of which equal ones are built once."""

    def __init__(self, grids: list[Ints]) -> None:
        self._grids = grids
        self._found: dict[tuple[int, int, int, int], Ints] = {}

    def of(self, job: Job, group: int, most: int, held: int) -> Ints:
        """Return the sizes within a job's limits, and the present one. A rigid job has one size."""
        if "devices" not in job.adapts:
            return _sizes(job, self._grids[group], most, held)
        key = group, job.min_devices, most, held
        if key not in self._found:
            self._found[key] = _sizes(job, self._grids[group], most, held)
        return self._found[key]


def node_sizes(group: NodeGroup) -> Ints:
    """Return sizes that pack without a split: powers of two within a node, the whole node, then whole nodes."""
    size = group.devices_per_node
    inside = [1 << power for power in range(size.bit_length()) if 1 << power < size]
    return np.array([*inside, *range(size, group.devices + 1, size)])


def is_node_size(devices: Ints, devices_per_node: Ints | int) -> Bools:
    """Return a mask of the sizes that ``node_sizes`` has."""
    return np.asarray(np.where(devices < devices_per_node, devices & (devices - 1) == 0, devices % devices_per_node == 0))


def _sizes(job: Job, grid: Ints, most: int, held: int) -> Ints:
    """Return the sizes on one type: those of the grid within its limits, and the present one. A rigid job has one size."""
    if "devices" not in job.adapts:
        return np.array([job.devices] if job.devices <= most else [], np.int64)
    allowed = grid[grid >= job.min_devices]
    legal = allowed[allowed <= most] if most >= job.min_devices else allowed[:1]
    return np.unique(np.append(legal, held)) if held else legal
