"""Policy of Slurm: multifactor priority and backfill with reservations by time limits.

Slurm 25.05: priority_multifactor.html, preempt.html, and sched/backfill in sched_config.html. A job's account is its
``virtual_cluster``, its user its ``owner``, its partition its ``queue``. The simulator counts devices, not CPUs.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.job import Job
from paceline.scheduling.policies.backfill.expected_length import Lengths
from paceline.scheduling.policies.backfill.plan import BackfillPlan
from paceline.scheduling.policies.backfill.slurm_bounds import BoundsInUse, user_of
from paceline.scheduling.queues.fair_share import DecayedUsage, User, fair_share_factors
from paceline.scheduling.queues.slurm_settings import Qos, SlurmPartition, SlurmSettings
from paceline.scheduling.state import Decision, State
from paceline.scheduling.traces.type_names import types_meant

DEFAULT = SlurmSettings(weight_age=1000.0, weight_fairshare=10_000.0)
"""Settings where none are given: fair share first, then age."""


def slurm(state: State, settings: SlurmSettings = DEFAULT, lengths: Lengths = "stated") -> Decision:
    """Start jobs by tier and priority. A job that must wait gets a reservation, which later jobs do not delay.

    Jobs over a limit of their user, account, quality of service or partition wait, and hold up no other.

    Args:
        lengths: source of the expected lengths; Slurm itself knows time limits only.
    """
    usage = DecayedUsage(settings.half_life_s, settings.usage, state.memory)
    usage.pass_to(state.time_s)
    factors = fair_share_factors(settings, usage.usage, {user_of(job) for job in state.jobs}) if settings.multifactor else {}
    waiting = np.flatnonzero(state.devices == 0).tolist()
    priorities = priority_of(state, settings, factors)
    tiers = [_partition(settings, job).tier for job in state.jobs]
    order = sorted(waiting, key=lambda index: (-tiers[index], -priorities[index], index))
    plan = BackfillPlan(_with_limits(state, settings), lengths)
    removed: dict[int, str] = {}
    bounds = BoundsInUse(plan.state, settings)
    tested = 0
    for index in order:
        if tested >= settings.max_tested:
            break
        groups, bound = bounds.within(index, _groups(state, settings, index))
        if bound:
            plan.reasons[index] = bound
            continue
        if plan.start(index, groups):
            bounds.add(index, int(plan.types[index]))
            continue
        if settings.preempt != "none" and _preempts(plan, settings, index, groups, removed) and plan.start(index, groups):
            bounds.add(index, int(plan.types[index]))
            continue
        tested += 1
        where = f", tier {tiers[index]}" if settings.preempt == "partition_prio" or len(set(tiers)) > 1 else ""
        share = f", fair share {factors.get(user_of(state.jobs[index]), 1.0):.3g} of 1" if factors else ""
        ahead = "jobs before it in priority keep devices" if plan.waits else "it is first in priority, and waits for devices"
        plan.reasons[index] = f"{ahead}: its priority was {priorities[index]:,.0f}{share}{where}"
        start_s = plan.earliest(index, groups)[0]
        if not settings.backfill:
            plan.close(index, groups)
        elif not _qos(settings, state.jobs[index]).reserves:
            plan.waits = True
        elif start_s <= state.time_s + settings.window_s or start_s == math.inf:
            plan.reserve(index, groups)
    decision = plan.decision(order)
    held: Counter[User] = Counter()
    for job, devices in zip(state.jobs, decision.devices.tolist(), strict=True):
        held[user_of(job)] += devices * job.share
    usage.hold(held)
    holds_until_s = math.inf if not (decision.devices == 0).any() else -math.inf
    return replace(decision, memory=usage.to_json(), holds_until_s=holds_until_s, removed=removed)


def priority_of(state: State, settings: SlurmSettings, factors: dict[User, float]) -> Array:
    """Return the priority of each job. ``Job.priority`` is added, as a site factor or a negative nice value.

    Args:
        factors: fair-share factor of each user.
    """
    added = np.array([job.priority for job in state.jobs], float)
    if not settings.multifactor or not state.jobs:
        return added
    age = np.minimum(state.age_s / settings.max_age_s, 1.0) if settings.max_age_s else np.ones(len(state.jobs))
    size = np.asarray(state.requested / max(int(state.capacity.sum()), 1), float)
    size = 1 - size if settings.favor_small else size
    partition = [_partition(settings, job).priority for job in state.jobs]
    most = max((stated.priority for stated in settings.partitions.values()), default=1.0)
    quality = [_qos(settings, job).priority for job in state.jobs]
    best = max((stated.priority for stated in settings.qos.values()), default=0.0)
    fair = [factors.get(user_of(job), 1.0) for job in state.jobs]
    return np.asarray(
        added
        + settings.weight_age * age
        + settings.weight_job_size * size
        + settings.weight_partition * np.array(partition) / (most or 1.0)
        + settings.weight_qos * np.array(quality) / (best or 1.0)
        + settings.weight_fairshare * np.array(fair)
    )


def _partition(settings: SlurmSettings, job: Job) -> SlurmPartition:
    return settings.partitions.get(job.queue) or _DEFAULT_PARTITION


def _qos(settings: SlurmSettings, job: Job) -> Qos:
    return settings.quality(job.qos)


_DEFAULT_PARTITION = SlurmPartition()


def _groups(state: State, settings: SlurmSettings, index: int) -> list[int]:
    stated, types = _partition(settings, state.jobs[index]).types, state.fleet.types
    meant = {name for given in stated for name in types_meant(given, types)}
    return [group for group, name in enumerate(types) if not stated or name in meant]


def _with_limits(state: State, settings: SlurmSettings) -> State:
    """Return the state with time limits for jobs that state none: the default of the partition, or the longest legal one."""
    legal = any(each.default_limit_s or each.max_limit_s for each in settings.partitions.values())
    if not legal and not settings.is_bounded:
        return state
    jobs = [replace(job, limit_s=limit_s) if (limit_s := _limit_s(settings, job)) else job for job in state.jobs]
    return replace(state, jobs=jobs)


def _limit_s(settings: SlurmSettings, job: Job) -> float:
    """Return the time limit that a job gets; 0: it has one, or none applies."""
    if job.limit_s:
        return 0.0
    most = (_partition(settings, job).default_limit_s, settings.bounds(*user_of(job), job.queue, job.qos).most_s)
    return min((limit_s for limit_s in most if limit_s), default=0.0)


def _preempts(plan: BackfillPlan, settings: SlurmSettings, index: int, groups: list[int], removed: dict[int, str]) -> bool:
    """Preempt jobs of a lower tier or of qualities of service that this job's may preempt."""
    state, job = plan.state, plan.state.jobs[index]

    def lower(other: int) -> bool:
        if float(state.held_s[other]) < settings.exempt_s:
            return False
        if settings.preempt == "qos":
            return (state.jobs[other].qos or "normal") in _qos(settings, job).preempts
        return _partition(settings, state.jobs[other]).tier < _partition(settings, job).tier

    before = plan.devices.copy()
    if not plan.preempt(index, lower, groups):
        return False
    if settings.preempt_mode == "cancel":
        for other in np.flatnonzero((before > 0) & (plan.devices == 0)).tolist():
            removed[other] = f"it was preempted for {job.name} and cancelled"
    return True
