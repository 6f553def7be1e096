"""Paceline's own policy, which weights the speedup of each job by its remaining work.

``n`` devices speed up a job of ``R`` seconds of work (on one device of its best type) by ``s(n)``. The policy maximizes ``sum
R^-a s^p / p``. The weight ``R^-a`` favours short jobs, like shortest remaining time (a = 1). The power p < 1 spreads devices
over jobs, like a fair share. A restart costs its share of the time for which the new devices are likely to be kept: to the
job's end, or as long as it kept its devices so far.

The goodput is predicted and corrected by reports. If the remaining work is unknown, or the predicted range is wide, attained
service replaces it, as in least attained service: a job that has run long is likely to run long. On one device type smaller
jobs make room for a larger one that would be scattered.
"""

from __future__ import annotations

import math

import numpy as np

from paceline.array_types import Array, Ints
from paceline.scheduling.policies.goodput import least_cost, sizes_of
from paceline.scheduling.policies.sia import node_sizes
from paceline.scheduling.policies.solvers.integer_program import TIME_LIMIT_S, Choices, least_sum
from paceline.scheduling.policies.solvers.rigid import all_served
from paceline.scheduling.state import Decision, Outlook, State

SPREAD_POWER = 0.75
"""p: 0 is proportional fairness, 1 the sum of speedups."""
SHORT_FIRST = 0.3
"""a: 0 ignores the remaining work, 1 is closest to shortest remaining time first."""
KEPT_S = 900.0
"""Longest time in seconds for which devices are assumed to be kept."""
LEAST_KEPT_S = 300.0
"""Least such time of a job that was often resized. Otherwise it is the mean time for which the job kept its devices."""
UNKNOWN_S = 300.0
"""Remaining device-seconds assumed for an arriving job of unknown length."""
LEVEL = 4.0
"""Ratio of the levels of attained service. Levels keep equal jobs from taking turns (Tiresias, section 4)."""
WIDE = 0.5
"""Half the 80 % range, relative to the prediction, from which the prediction is not used."""


def paceline(
    state: State,
    spread_power: float = SPREAD_POWER,
    short_first: float = SHORT_FIRST,
    kept_s: float = KEPT_S,
    time_limit_s: float = TIME_LIMIT_S,
) -> Decision:
    """Choose numbers and types of devices with the largest sum.

    Args:
        spread_power: p, above 0 and up to 1. ``short_first``: a, from 0 to 1.
        kept_s: longest time over which a restart must pay. A waiting job pays its start over its remaining work.
        time_limit_s: time limit of the solver on several types; then the best allocation so far is used.
    """
    likely_s = np.maximum(state.ran_s / (state.restarts + 1), LEAST_KEPT_S)
    worths = [
        _worths(state, index, outlook, spread_power, short_first, min(kept_s, float(likely_s[index])))
        for index, outlook in enumerate(state.outlooks)
    ]
    if len(state.fleet.groups) == 1:
        options = [sizes[0] for sizes, _ in worths]
        costs = [-values[0] for _, values in worths]
        devices, types = least_cost(options, costs, int(state.capacity[0])), np.zeros(len(state.jobs), np.int64)
        note = ""
    else:
        devices, types, note = _over_types(state, worths, time_limit_s)
    order = np.argsort(-devices, kind="stable").tolist()
    alone = len(state.fleet.groups) == 1
    return Decision(
        devices=devices,
        type_index=types,
        order=order,
        rule="fewest_nodes",
        repack=alone,  # goodput assumes packed devices; on several types sizes fill nodes anyway
        note=note,
        holds_until_s=math.inf if alone and all_served(state) else -math.inf,
    )


def work_left_s(outlook: Outlook, device_type: int, least: int, attained_s: float) -> float:
    """Return remaining device-seconds on the ``least`` devices of a type; if unknown, about as many as were used already."""
    known = least * float(outlook.seconds_left(device_type, least)[least])
    believed = math.isfinite(known) and outlook.relative_spread() < WIDE
    if believed:
        return max(known, 1.0)
    levels = math.ceil(math.log(max(attained_s / UNKNOWN_S, 1.0), LEVEL))
    return UNKNOWN_S * LEVEL**levels


def _worths(
    state: State, index: int, outlook: Outlook, power: float, short_first: float, kept_s: float
) -> tuple[list[Ints], list[Array]]:
    """Return the sizes of each type, including 0, and the addition of each to the sum."""
    job, most, restart_s = state.jobs[index], outlook.max_devices(), float(state.restart_s[index])
    held, held_type = int(state.devices[index]), int(state.type_index[index])
    sizes, rates = [], []
    for group, capacity in enumerate(state.capacity.tolist()):
        if not job.may_use(state.fleet.groups[group].device):
            legal = np.zeros(1, np.int64)
        elif "devices" not in job.adapts:
            legal = np.array([0, job.devices] if job.devices <= capacity else [0])
        else:
            kept = held if group == held_type else 0
            legal = sizes_of(min(most, capacity), state.fleet.groups[group].devices_per_node, kept)
            legal = legal[(legal == 0) | (legal >= job.min_devices)]
        sizes.append(legal)
        rates.append(outlook.goodput(group, int(legal[-1]))[legal])
    speeds = [float(rate[1] / size[1]) if len(size) > 1 else 0.0 for rate, size in zip(rates, sizes, strict=True)]
    best = int(np.argmax(speeds))
    if speeds[best] <= 0:
        return sizes, [np.zeros(len(size)) for size in sizes]
    left_s = work_left_s(outlook, best, int(sizes[best][1]), float(state.attained_s[index]))
    values = []
    for group, (size, rate) in enumerate(zip(sizes, rates, strict=True)):
        stays = (size == held) & (group == held_type)
        speedup = rate / speeds[best]
        with np.errstate(divide="ignore"):
            seconds = np.minimum(left_s / speedup + restart_s, kept_s if held else math.inf)
        works = np.where(stays, 1.0, np.maximum(1 - restart_s / seconds, 0.0))
        values.append(job.weight * left_s**-short_first * (works * speedup) ** power / power)
    return sizes, values


def _over_types(state: State, worths: list[tuple[list[Ints], list[Array]]], time_limit_s: float) -> tuple[Ints, Ints, str]:
    columns: list[tuple[Ints, Ints, Ints, Array]] = []
    for index, (sizes, values) in enumerate(worths):
        for group, (size, value) in enumerate(zip(sizes, values, strict=True)):
            whole = node_sizes(state.fleet.groups[group])
            kept = np.isin(size, whole) | ((size == state.devices[index]) & (group == state.type_index[index]))
            kept |= "devices" not in state.jobs[index].adapts
            kept &= (size > 0) & (value > 0)
            many = int(kept.sum())
            columns.append((np.full(many, index), size[kept], np.full(many, group), -value[kept]))
    job, devices, types, cost = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    choices = Choices(job, devices, types, cost, np.zeros(len(job), bool))
    taken = least_sum(choices, state.capacity, time_limit_s)
    if taken is None:
        return state.devices.copy(), state.type_index.copy(), f"no allocation in {time_limit_s:g} s: jobs keep what they hold"
    chosen, kinds = np.zeros(len(worths), np.int64), np.full(len(worths), -1)
    chosen[job[taken]], kinds[job[taken]] = devices[taken], types[taken]
    return chosen, kinds, ""
