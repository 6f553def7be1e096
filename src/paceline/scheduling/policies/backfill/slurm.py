"""Policy of Slurm: multifactor priority and backfill with reservations by time limits.

Slurm 25.05: priority_multifactor.html, preempt.html, and sched/backfill in sched_config.html. A job's account is its
``virtual_cluster``, its user its ``owner``, its partition its ``queue``. The simulator counts devices, not CPUs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paceline.array_types import Array, Ints
from paceline.scheduling.job import Job
from paceline.scheduling.policies.backfill.expected_length import Lengths
from paceline.scheduling.policies.backfill.plan import BackfillPlan
from paceline.scheduling.policies.backfill.slurm_bounds import BoundsInUse
from paceline.scheduling.policies.backfill.slurm_preemption import Requeued, SlurmPreemption, grace_s, preempt_mode
from paceline.scheduling.queues.fair_share import DecayedUsage, User, fair_share_factors
from paceline.scheduling.queues.slurm_limits import Scope
from paceline.scheduling.queues.slurm_settings import JobKind, SlurmSettings
from paceline.scheduling.state import Decision, State
from paceline.scheduling.traces.type_names import types_meant

DEFAULT = SlurmSettings(weight_age=1000.0, weight_fairshare=10_000.0)
"""Settings where none are given: fair share first, then age."""
PREEMPTED = "its devices went to a job that may preempt it"
"""Reason of the wait of a preempted job."""
REQUEUED = "it was preempted, and is requeued with a delay"
IN_GRACE = "it waits for the end of the grace of jobs that are preempted for it"
"""Reasons of the wait of a requeued job, and of a job that preempts others."""


def slurm(
    state: State,
    settings: SlurmSettings = DEFAULT,
    lengths: Lengths = "stated",
    explains: bool = True,
    submits: bool = True,
) -> Decision:
    """Start jobs by tier and priority. A job that must wait gets a reservation, which later jobs do not delay.

    Jobs over a limit of their user, account, quality of service or partition wait, and hold up no other.

    Args:
        lengths: source of the expected lengths; Slurm itself knows time limits only.
        submits: refuse arriving jobs beyond the limits on jobs that wait or run; False: all of them were taken.
        explains: give reasons. Without them the same jobs start, sooner decided: nothing is computed that starts none.
    """
    kinds = _kinds(state, settings)
    refused = _refused(state, kinds) if settings.refuses else {}
    if submits and settings.bounds_submits:
        refused |= _not_submitted(state, kinds)
    usage = DecayedUsage(settings.half_life_s, settings.usage, state.memory)
    usage.pass_to(state.time_s)
    preempting, requeued = settings.preempt != "none", Requeued(state)
    state, delayed = requeued.applied(state), requeued.delayed(state)
    waiting = np.flatnonzero(state.devices == 0).tolist()
    plan = BackfillPlan(_with_rules(state, settings, kinds), lengths, preempting and len(state.free) > len(state.fleet.groups))
    bounds = BoundsInUse(plan.state, settings, kinds)
    later = _LaterStarts(plan, bounds, _legal_groups(state, settings), waiting)
    quick = not explains and not preempting
    if quick and not later.candidates and not refused:
        memory = _with_holders(usage, state, kinds, state.devices)
        held_s = -math.inf if waiting else math.inf
        return replace(plan.decision(waiting), memory=memory, holds_until_s=held_s, wake_s=bounds.wake_s)
    factors = fair_share_factors(settings, usage.usage, {kind.user for kind in kinds}) if settings.multifactor else {}
    priority = priority_of(state, settings, factors, kinds).tolist()
    preemption = SlurmPreemption(plan, settings, kinds, priority) if preempting else None
    tiers = [kind.partition.tier for kind in kinds]
    came_s = state.arrival_s.tolist()
    order = sorted(waiting, key=lambda index: (-tiers[index], -priority[index], came_s[index], index))
    later.place_in(order)
    shows_tier = settings.preempt == "partition_prio" or len(set(tiers)) > 1
    tested = 0
    for place, index in enumerate(order):
        if tested >= settings.max_tested or (quick and not later.any_after(place - 1)):
            break
        if index in delayed or index in refused:
            plan.reasons[index] = refused.get(index, REQUEUED)
            continue
        groups, bound = later.legal(index)
        if bound:
            plan.reasons[index] = bound
            continue
        if plan.may_start(index, groups) and plan.start(index, groups):
            bounds.add(index, int(plan.types[index]))
            continue
        preempts = preemption is not None and preemption.preempts(index, groups)
        if preempts and plan.start(index, groups):
            bounds.add(index, int(plan.types[index]))
            continue
        tested += 1
        if preempts:
            plan.reasons[index] = IN_GRACE
        elif explains:
            where = f", tier {tiers[index]}" if shows_tier else ""
            share = f", fair share {factors.get(kinds[index].user, 1.0):.3g} of 1" if factors else ""
            plan.reasons[index] = _behind(plan) + f": its priority was {priority[index]:,.0f}{share}{where}"
        if plan.waits and not preempting and not later.any_after(place):
            continue  # devices that are kept for it would change nothing now
        _keep_devices(plan, settings, index, groups, kinds[index].quality.reserves)
    decision = plan.decision(order)
    memory = _with_holders(usage, state, kinds, decision.devices)
    holds_until_s = math.inf if not (decision.devices == 0).any() else -math.inf
    decision = replace(
        decision, memory=memory, holds_until_s=holds_until_s, wake_s=min([decision.wake_s, bounds.wake_s, *delayed.values()])
    )
    decision = decision if preemption is None else _with_victims(decision, preemption, requeued, settings, kinds)
    return replace(decision, removed={**decision.removed, **refused}) if refused else decision


def _not_submitted(state: State, kinds: Sequence[JobKind]) -> dict[int, str]:
    """Return the jobs that just came and are beyond the limits on jobs that wait or run (``MaxSubmitJobs``)."""
    count: Counter[Scope] = Counter()
    found: dict[int, str] = {}
    for index, (kind, age_s) in enumerate(zip(kinds, state.age_s.tolist(), strict=True)):
        fresh = age_s <= state.round_s and not state.devices[index]
        broken = next((bound for bound in kind.bounds.submits if fresh and count[bound.scope] >= bound.most), None)
        if broken:
            found[index] = f"it was refused: {broken.text_alone(1)}"
            continue
        for bound in kind.bounds.submits:
            count[bound.scope] += 1
    return found


def _refused(state: State, kinds: Sequence[JobKind]) -> dict[int, str]:
    """Return the waiting jobs that Slurm would not have taken, with the reason."""
    return {index: kinds[index].refused for index in np.flatnonzero(state.devices == 0).tolist() if kinds[index].refused}


def _behind(plan: BackfillPlan) -> str:
    """Return what a job waits for."""
    return "jobs before it in priority keep devices" if plan.waits else "it is first in priority, and waits for devices"


def _keep_devices(plan: BackfillPlan, settings: SlurmSettings, index: int, groups: Sequence[int], reserves: bool) -> None:
    """Keep devices for a job that waits, as far as the backfill does."""
    if not settings.backfill:
        plan.close(index, groups)
    elif not reserves:
        plan.waits = True
    else:
        found = plan.find_start(index, groups)
        if found[0] <= plan.state.time_s + settings.window_s or found[0] == math.inf:
            plan.reserve(index, groups, found)


def _with_victims(
    decision: Decision, preemption: SlurmPreemption, requeued: Requeued, settings: SlurmSettings, kinds: Sequence[JobKind]
) -> Decision:
    """Return the decision with the jobs that are preempted: their grace, and what becomes of them."""
    jobs, victims, now_s = preemption.plan.state.jobs, preemption.victims, preemption.plan.state.time_s
    cancelled = [other for other in victims if preempt_mode(kinds[other], settings) == "cancel"]
    for other in set(victims) - set(cancelled):
        requeued.add(jobs[other].name, now_s + jobs[other].grace_s)
    return replace(
        decision,
        memory={**decision.memory, "requeued": requeued.to_json()},
        removed={other: f"it was preempted for {jobs[victims[other]].name} and cancelled" for other in cancelled},
        preempted=victims,
        grace_s={other: jobs[other].grace_s for other in victims},
        reasons={**decision.reasons, **dict.fromkeys(victims, PREEMPTED)},
        wake_s=min(decision.wake_s, preemption.wake_s),
    )


def _with_holders(usage: DecayedUsage, state: State, kinds: Sequence[JobKind], devices: Ints) -> dict[str, object]:
    """Return the usage, with the devices that users hold from now on, as plain data."""
    held: Counter[User] = Counter()
    for job, kind, count in zip(state.jobs, kinds, devices.tolist(), strict=True):
        held[kind.user] += count * job.share
    usage.hold(held)
    return usage.to_json()


def priority_of(
    state: State, settings: SlurmSettings, factors: dict[User, float], kinds: Sequence[JobKind] | None = None
) -> Array:
    """Return the priority of each job. ``Job.priority`` is added, as a site factor or a negative nice value.

    Args:
        factors: fair-share factor of each user. ``kinds``: settings that apply to each job; None: looked up.
    """
    added = np.array([job.priority for job in state.jobs], float)
    if not settings.multifactor or not state.jobs:
        return added
    age = np.minimum(state.age_s / settings.max_age_s, 1.0) if settings.max_age_s else np.ones(len(state.jobs))
    size = np.asarray(state.requested / max(int(state.capacity.sum()), 1), float)
    size = 1 - size if settings.favor_small else size
    kinds = kinds or _kinds(state, settings)
    partition = [kind.partition.priority for kind in kinds]
    most = max((stated.priority for stated in settings.partitions.values()), default=1.0)
    quality = [kind.quality.priority for kind in kinds]
    best = max((stated.priority for stated in settings.qos.values()), default=0.0)
    fair = [factors.get(kind.user, 1.0) for kind in kinds]
    return np.asarray(
        added
        + settings.weight_age * age
        + settings.weight_job_size * size
        + settings.weight_partition * np.array(partition) / (most or 1.0)
        + settings.weight_qos * np.array(quality) / (best or 1.0)
        + settings.weight_fairshare * np.array(fair)
    )


def _kinds(state: State, settings: SlurmSettings) -> list[JobKind]:
    """Return the settings that apply to each job."""
    keys = [(job.virtual_cluster, job.owner, job.queue, job.qos) for job in state.jobs]
    return [settings.kinds.get(key) or settings.kind(*key) for key in keys]


def _legal_groups(state: State, settings: SlurmSettings) -> list[tuple[int, ...]]:
    """Return the types that each job may use by its partition."""
    types = state.fleet.types
    every = tuple(range(len(types)))
    of_partition: dict[str, tuple[int, ...]] = {}
    for name, partition in settings.partitions.items():
        if partition.types:
            meant = {kind for stated in partition.types for kind in types_meant(stated, types)}
            of_partition[name] = tuple(group for group, kind in enumerate(types) if kind in meant)
    return [of_partition.get(job.queue or settings.default_partition, every) for job in state.jobs]


class _LaterStarts:
    """Waiting jobs that may start in this decision after another one. In its course free devices only become fewer.

    Attributes:
        candidates: waiting jobs that might start.
    """

    def __init__(
        self, plan: BackfillPlan, bounds: BoundsInUse, groups: Sequence[tuple[int, ...]], waiting: Sequence[int]
    ) -> None:
        self._plan, self._bounds, self._groups = plan, bounds, groups
        self._order: Sequence[int] = waiting
        self.candidates = [index for index in waiting if self._may_start(index)]
        self._places: list[int] = []

    def legal(self, index: int) -> tuple[tuple[int, ...], str]:
        """Return the types on which a job may start, and the limit that stops it; empty: none."""
        return self._bounds.within(index, self._groups[index])

    def _may_start(self, index: int) -> bool:
        groups, broken = self.legal(index)
        return not broken and self._plan.may_start(index, groups)

    def place_in(self, order: Sequence[int]) -> None:
        """Set the order of the waiting jobs."""
        chosen = set(self.candidates)
        self._order, self._places = order, [place for place, index in enumerate(order) if index in chosen]

    def any_after(self, place: int) -> bool:
        """Return whether any job after a place of the order may start."""
        while self._places and self._places[-1] > place:
            if self._may_start(self._order[self._places[-1]]):
                return True
            self._places.pop()
        return False


def _with_rules(state: State, settings: SlurmSettings, kinds: Sequence[JobKind]) -> State:
    """Return the state with the grace of each job, and time limits for jobs that state none.

    The limit is the default of the partition, or the longest legal one.
    """
    legal = any(each.default_limit_s or each.max_limit_s for each in settings.partitions.values())
    limits = (legal or settings.is_bounded) and not all(job.limit_s for job in state.jobs)
    if not limits and not settings.has_grace:
        return state
    jobs = []
    for job, kind in zip(state.jobs, kinds, strict=True):
        limit_s, grace = _limit_s(kind, job) if limits else 0.0, grace_s(kind, settings)
        changed = limit_s or grace > job.grace_s
        jobs.append(replace(job, limit_s=limit_s or job.limit_s, grace_s=max(grace, job.grace_s)) if changed else job)
    return replace(state, jobs=jobs)


def _limit_s(kind: JobKind, job: Job) -> float:
    """Return the time limit that a job gets; 0: it has one, or none applies."""
    if job.limit_s:
        return 0.0
    most = (kind.partition.default_limit_s, kind.bounds.most_s)
    return min((limit_s for limit_s in most if limit_s), default=0.0)
