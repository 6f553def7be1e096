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
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.scheduling.policies.goodput import sizes_of
from paceline.scheduling.policies.sia import is_node_size
from paceline.scheduling.policies.solvers.integer_program import TIME_LIMIT_S, least_sum
from paceline.scheduling.policies.solvers.knapsack import Sizes, least_total
from paceline.scheduling.policies.solvers.rigid import all_served
from paceline.scheduling.policies.solvers.useful_choices import Choices
from paceline.scheduling.speeds.goodput_tables import goodput_on, shared_outlook
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
MARGIN_S = 1e-3
"""Time before a level at which the promise of equal decisions ends."""
_LEVELS_S = UNKNOWN_S * LEVEL ** np.arange(40)
_LEVEL_LIST: list[float] = _LEVELS_S.tolist()
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
    values = size_values(state, spread_power, short_first, kept_s)
    alone, note = len(state.fleet.groups) == 1, ""
    if alone:
        devices, types = _on_one_type(state, values), np.zeros(len(state.jobs), np.int64)
    else:
        devices, types, note = _over_types(state, values, time_limit_s)
    return Decision(
        devices=devices,
        type_index=types,
        order=np.argsort(-devices, kind="stable").tolist(),
        rule="fewest_nodes",
        repack=alone,  # goodput assumes packed devices; on several types sizes fill nodes anyway
        note=note,
        holds_until_s=_same_until_s(state, devices) if alone else -math.inf,
    )


def work_left_s(outlook: Outlook, device_type: int, least: int, attained_s: float, rate: float = 0.0) -> float:
    """Return remaining device-seconds on the ``least`` devices of a type; if unknown, about as many as were used already.

    Args:
        rate: goodput there; 0: ask the outlook.
    """
    shared = shared_outlook(outlook) if rate else None
    seconds = shared.progress_left() / rate if shared else float(outlook.seconds_left(device_type, least)[least])
    known = least * seconds
    believed = math.isfinite(known) and outlook.relative_spread() < WIDE
    return max(known, 1.0) if believed else _LEVEL_LIST[bisect_left(_LEVEL_LIST, attained_s)]


def _attained_level_s(attained_s: Array) -> Array:
    """Return the lowest level that is not below the attained device-seconds."""
    return np.asarray(_LEVELS_S[np.searchsorted(_LEVELS_S, attained_s)])


@dataclass(frozen=True, slots=True)
class SizeValues:
    """Sizes on which jobs run, above 0, by job, then type, then ascending; arrays of one shape.

    Attributes:
        rate: goodput. ``value``: addition to the sum.
    """

    job: Ints
    type_index: Ints
    devices: Ints
    rate: Array
    value: Array


def size_values(
    state: State, power: float = SPREAD_POWER, short_first: float = SHORT_FIRST, kept_s: float = KEPT_S
) -> SizeValues:
    """Return the sizes of each job with their additions to the sum. Arguments as those of ``paceline``."""
    job, type_index, devices, rate = _sizes(state)
    jobs, fixed = len(state.jobs), state.fixed
    if not len(job):
        return SizeValues(job, type_index, devices, rate, np.zeros(0))
    least = np.flatnonzero((np.diff(job, prepend=-1) != 0) | (np.diff(type_index, prepend=-1) != 0))  # of each job and type
    speed = rate[least] / devices[least]
    starts = np.flatnonzero(np.diff(job[least], prepend=-1))
    best_speed = np.maximum.reduceat(speed, starts)
    fastest = least[np.flatnonzero(speed == np.repeat(best_speed, np.diff(starts, append=len(least))))]
    fastest = fastest[np.diff(job[fastest], prepend=-1) != 0]  # the first of equal types
    runs = job[fastest]
    left_s = np.ones(jobs)
    left_s[runs] = _attained_level_s(state.attained_s[runs])
    asks = np.ones(len(runs), bool)
    if fixed is not None:
        asks = np.isnan(fixed.rate[runs, type_index[fastest]])
        known = devices[fastest] * (fixed.left[runs] / rate[fastest])
        believed = np.isfinite(known) & (fixed.spread[runs] < WIDE) & ~asks
        left_s[runs[believed]] = np.maximum(known[believed], 1.0)
    asked = fastest[asks]
    columns = (
        part.tolist() for part in (job[asked], type_index[asked], devices[asked], state.attained_s[runs[asks]], rate[asked])
    )
    for index, *question in zip(*columns, strict=True):
        left_s[index] = work_left_s(state.outlooks[index], *question)
    reference = np.ones(jobs)
    reference[runs] = best_speed
    weight = np.array([job.weight * left**-short_first for job, left in zip(state.jobs, left_s.tolist(), strict=True)])
    held = state.devices > 0
    likely_s = np.minimum(np.maximum(state.ran_s / (state.restarts + 1), LEAST_KEPT_S), kept_s)
    bound_s = np.where(held, likely_s, math.inf)
    speedup = rate / reference[job]
    restart_s = np.asarray(state.restart_s)[job]
    seconds = np.minimum(left_s[job] / speedup + restart_s, bound_s[job])
    works = np.where(_stays(state, job, type_index, devices), 1.0, np.maximum(1 - restart_s / seconds, 0.0))
    return SizeValues(job, type_index, devices, rate, weight[job] * (works * speedup) ** power / power)


def _stays(state: State, job: Ints, type_index: Ints, devices: Ints) -> Bools:
    """Return a mask of the sizes that the jobs hold now."""
    return np.asarray((devices == state.devices[job]) & (type_index == state.type_index[job]))


def _sizes(state: State) -> tuple[Ints, Ints, Ints, Array]:
    """Return job, type, devices and goodput of all sizes on which jobs run."""
    capacity, fixed = state.capacity, state.fixed
    parts: list[tuple[Ints, Ints, Ints, Array]] = []
    ask = list(range(len(state.jobs)))
    if fixed is not None:
        rows, types = np.nonzero((fixed.rate > 0) & (state.requested[:, None] <= capacity))
        parts.append((rows, types, state.requested[rows], fixed.rate[rows, types]))
        ask = np.flatnonzero(np.isnan(fixed.rate[:, 0])).tolist()
    if ask:
        parts.append(_asked_sizes(state, ask))
    job, types, devices, rate = (np.concatenate(part) for part in zip(*parts, strict=True)) if parts else _NO_SIZES
    runs = rate > 0
    if not runs.all():
        job, types, devices, rate = job[runs], types[runs], devices[runs], rate[runs]
    if len(parts) > 1:
        order = np.argsort(job, kind="stable")
        job, types, devices, rate = job[order], types[order], devices[order], rate[order]
    return job, types, devices, rate


def _asked_sizes(state: State, ask: Sequence[int]) -> tuple[Ints, Ints, Ints, Array]:
    """Return job, type, devices and goodput of the sizes of these jobs, as their outlooks say."""
    rows, outlooks, types, sizes = list[int](), list[Outlook](), list[int](), list[Ints]()
    held, held_type = state.devices.tolist(), state.type_index.tolist()
    alone = len(state.fleet.groups) == 1
    groups = [
        (kind, group.device, group.devices_per_node, min(there, group.devices))
        for kind, (group, there) in enumerate(zip(state.fleet.groups, state.capacity.tolist(), strict=True))
    ]
    for index in ask:
        job, outlook = state.jobs[index], state.outlooks[index]
        most, elastic = outlook.max_devices(), "devices" in job.adapts
        for kind, device, per_node, there in groups:
            if job.device_types and not job.may_use(device):
                continue
            if elastic:
                kept = held[index] if kind == held_type[index] else 0
                legal = _elastic_sizes(min(most, there), per_node, kept, job.min_devices, alone)
            else:
                legal = _one_size(job.devices) if job.devices <= there else _NONE
            if legal.size:
                rows.append(index)
                outlooks.append(outlook)
                types.append(kind)
                sizes.append(legal)
    if not rows:
        return _NO_SIZES
    counts = [len(legal) for legal in sizes]
    rate = goodput_on(outlooks, types, sizes)
    return np.repeat(rows, counts), np.repeat(types, counts), np.concatenate(sizes), rate


@lru_cache(1 << 14)
def _elastic_sizes(most: int, per_node: int, held: int, least: int, alone: bool) -> Ints:
    """Return the sizes to try, ascending and above 0: on several types only the least, those that fill nodes, and ``held``."""
    sizes = sizes_of(most, per_node, held)
    sizes = sizes[max(int(np.searchsorted(sizes, least)), 1) :]
    if alone or not sizes.size:
        return sizes
    return np.asarray(sizes[is_node_size(sizes, per_node) | (sizes == held) | (sizes == sizes[0])])


@lru_cache(4096)
def _one_size(devices: int) -> Ints:
    return np.array([devices])


_NONE = np.zeros(0, np.int64)
_NO_SIZES = (_NONE, _NONE, _NONE, np.zeros(0))


def _on_one_type(state: State, values: SizeValues) -> Ints:
    """Return the devices of each job with the largest sum."""
    jobs, useful = len(state.jobs), values.value > 0
    job, devices = values.job[useful], values.devices[useful]
    present, first = np.unique(job, return_index=True)
    chosen = np.zeros(jobs, np.int64)
    if len(present):
        nothing = np.zeros(len(present))
        sizes = Sizes(
            np.insert(devices, first, 0), np.insert(-values.value[useful], first, nothing), first + np.arange(len(first))
        )
        chosen[present] = least_total(sizes, int(state.capacity[0]))
    return chosen


def _same_until_s(state: State, devices: Ints) -> float:
    """Return the time until which the values stay the same, after a decision on one type.

    Values of rigid jobs change with their remaining work, or with the level of what they attained.
    """
    if all_served(state):
        return math.inf
    fixed = state.fixed
    if fixed is None or not np.isnan(fixed.left[devices > 0]).all() or np.isnan(fixed.rate[:, 0]).any():
        return -math.inf
    runs = devices > 0
    left_s = (_attained_level_s(state.attained_s[runs]) - state.attained_s[runs]) / devices[runs]
    return state.time_s + float(left_s.min(initial=math.inf)) - MARGIN_S


def _over_types(state: State, values: SizeValues, time_limit_s: float) -> tuple[Ints, Ints, str]:
    """Return devices and type of each job with the largest sum, and a note if there is none in time."""
    rigid = np.array(["devices" not in job.adapts for job in state.jobs], bool)
    kept = rigid[values.job] | _stays(state, values.job, values.type_index, values.devices)
    per_node = np.array([group.devices_per_node for group in state.fleet.groups])
    kept |= is_node_size(values.devices, per_node[values.type_index])
    kept &= values.value > 0
    job, devices, types = values.job[kept], values.devices[kept], values.type_index[kept]
    choices = Choices(job, devices, types, -values.value[kept], np.zeros(len(job), bool))
    taken = least_sum(choices, state.capacity, time_limit_s)
    if taken is None:
        return state.devices.copy(), state.type_index.copy(), f"no allocation in {time_limit_s:g} s: jobs keep what they hold"
    chosen, kinds = np.zeros(len(state.jobs), np.int64), np.full(len(state.jobs), -1)
    chosen[job[taken]], kinds[job[taken]] = devices[taken], types[taken]
    return chosen, kinds, ""
