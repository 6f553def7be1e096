"""Policy of goodput over device types (Sia, SOSP 2023, section 3.4): one integer program a round over all choices for each job.

The goodputs of a job are divided by its smallest. A configuration that needs a restart counts ``(age - restarts * delay) / (age
+ delay)`` of its goodput. The sum of ``goodput^p`` is optimized over one configuration per job, with a price for waiting jobs.
Jobs grow at most twofold a round, by the ``max_devices`` of their outlook.
"""

from __future__ import annotations

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.scheduling.fleet import NodeGroup
from paceline.scheduling.job import Job
from paceline.scheduling.policies.solvers.integer_program import TIME_LIMIT_S, Choices, least_sum
from paceline.scheduling.state import Decision, State

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
    restart_s, starting_s = state.restart_s, state.restarting_s
    aged = np.maximum(ages - state.restarts * restart_s, 0) / np.maximum(ages + restart_s, 1e-9)
    stays = np.where(ages < restart_s, 1.0, aged)
    grids = [node_sizes(group) for group in state.fleet.groups]
    columns: list[tuple[Ints, Ints, Ints, Array, Ints]] = []
    for index, (job, outlook) in enumerate(zip(state.jobs, state.outlooks, strict=True)):
        held, held_type = int(state.devices[index]), int(state.type_index[index])
        if held and starting_s[index] > 0:
            one = np.ones(1, np.int64)
            columns.append((one * index, one * held, one * held_type, np.ones(1), one))
            continue
        most = outlook.max_devices()
        sizes, types, values = [], [], []
        for group, grid in enumerate(grids):
            if not job.may_use(state.fleet.groups[group].device):
                continue
            legal = _sizes(job, grid, min(most, int(state.capacity[group])), held if group == held_type else 0)
            if legal.size:
                sizes.append(legal)
                types.append(np.full(len(legal), group))
                values.append(outlook.goodput(group, int(legal[-1]))[legal])
        if not sizes:
            continue
        size, kind, value = (np.concatenate(parts) for parts in (sizes, types, values))
        runs = value > 0
        if not runs.any():
            continue
        size, kind, value = size[runs], kind[runs], value[runs] * (int(size[runs].min()) / value[runs].min())
        if held:
            value = np.where((size == held) & (kind == held_type), value, value * stays[index])
        columns.append((np.full(len(size), index), size, kind, np.maximum(value, LEAST_VALUE), np.zeros(len(size), np.int64)))
    if not columns:
        empty = np.zeros(0, np.int64)
        return Choices(empty, empty, empty, np.zeros(0), np.zeros(0, bool))
    job_of, size, kind, value, fixed = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    return Choices(job_of, size, kind, value, fixed.astype(bool))


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
