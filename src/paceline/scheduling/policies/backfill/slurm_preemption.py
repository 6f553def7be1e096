"""Preemption as slurmctld does it, for jobs that need devices.

Slurm 25.05: preempt.html, and in its source src/interfaces/preempt.c (candidates and their order, grace), the plugins
preempt/qos and preempt/partition_prio (who may preempt whom), ``_run_now`` in select/cons_tres/job_test.c (which of them), and
``acct_policy_get_preemptable_time`` (``PreemptExemptTime``). A suspended job keeps its GPUs (``job_res_rm_job``: GRES are freed
when a job ends), so that modes other than requeue and cancel free nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from paceline.scheduling.conditions import is_protected
from paceline.scheduling.policies.backfill.plan import BackfillPlan
from paceline.scheduling.policies.backfill.preemption import Preemption, Room, first_that_suffice, placement_nodes
from paceline.scheduling.queues.slurm_settings import JobKind, PreemptMode, SlurmSettings
from paceline.scheduling.state import State

MOST_WEIGHT = 0xFFFF
"""Largest priority of a QOS, and largest number of nodes, that orders candidates: each has 16 bits."""
REQUEUE_DELAY_S = 121.0
"""Seconds from the end of a requeued job to its next start at the earliest: ``cred_expire``, and one more."""
FREEING = ("requeue", "cancel")
"""Modes in which a preempted job gives its devices back."""


def preempt_mode(kind: JobKind, settings: SlurmSettings) -> PreemptMode:
    """Return what becomes of a preempted job: by its QOS or its partition, else by the cluster."""
    own = kind.quality.preempt_mode if settings.preempt == "qos" else kind.partition.preempt_mode
    if own == "cluster" or (own == "off" and settings.preempt == "qos"):  # sacctmgr stores no mode for OFF
        return settings.preempt_mode
    return own


def grace_s(kind: JobKind, settings: SlurmSettings) -> float:
    """Return the seconds that a preempted job still has (``GraceTime``)."""
    if settings.preempt == "none":
        return 0.0
    return kind.quality.grace_s if settings.preempt == "qos" else kind.partition.grace_s


def exempt_s(kind: JobKind, settings: SlurmSettings) -> float:
    """Return the run time before which a job is not preempted (``PreemptExemptTime``)."""
    return settings.exempt_s if kind.quality.exempt_s is None else kind.quality.exempt_s


def may_preempt(one: JobKind, other: JobKind, settings: SlurmSettings) -> bool:
    """Return whether jobs of a kind may preempt some running jobs of another kind, at some time."""
    if settings.preempt == "none" or preempt_mode(other, settings) not in FREEING:
        return False
    if settings.preempt == "partition_prio":
        return other.partition.tier < one.partition.tier
    if one.qos == other.qos:
        return one.quality.preempts_within or settings.preempts_within
    return other.qos in one.quality.preempts


def in_slurms_order(candidates: Sequence[int], room: Room, reorder_count: int = 1, strict_order: bool = False) -> list[int]:
    """Choose the jobs that Slurm preempts; empty if the candidates do not suffice.

    Candidates leave in turn until the waiting job fits. Then the last one goes first, and the others by their number of nodes
    among those chosen, or stay in their order, and all leave in turn again. Finally those on the chosen nodes are preempted.

    Args:
        reorder_count: repetitions (``reorder_count``). Slurm makes one more than it is told.
        strict_order: keep the order of the others (``strict_order``).
    """
    order, passes = list(candidates), 0
    while True:
        count = first_that_suffice(order, room)
        if not count:
            return []
        nodes = room.nodes(order[:count])
        passes += 1
        if passes - 1 > reorder_count or len(order) <= passes:
            return [other for other in order[:count] if nodes & room.nodes_of(other)]
        last = order.pop(count - 1)
        if not strict_order:
            shared = {other: len(nodes & room.nodes_of(other)) for other in order[: count - 1]}
            order.sort(key=lambda other: -shared.get(other, 0))
        order.insert(0, last)


class Requeued:
    """Jobs that were preempted and requeued, with the time from which they may start again.

    They count as submitted then, so that their age begins again (``batch_requeue_fini`` of job_mgr.c).

    Args:
        state: state with ``to_json`` of the previous decision in its memory.
    """

    def __init__(self, state: State) -> None:
        saved = (state.memory or {}).get("requeued") or {}
        self._from_s: dict[str, float] = {job.name: saved[job.name] for job in state.jobs if job.name in saved} if saved else {}

    def applied(self, state: State) -> State:
        """Return the state with the new submission of these jobs."""
        if not self._from_s:
            return state
        pairs = zip(state.jobs, state.arrival_s.tolist(), strict=True)
        return replace(state, arrival_s=np.array([self._from_s.get(job.name, arrival_s) for job, arrival_s in pairs]))

    def delayed(self, state: State) -> dict[int, float]:
        """Return the jobs that may not start yet, with the time from which they may."""
        if not self._from_s:
            return {}
        found = {index: self._from_s.get(job.name, -math.inf) for index, job in enumerate(state.jobs)}
        return {index: from_s for index, from_s in found.items() if from_s > state.time_s}

    def add(self, name: str, stopped_s: float) -> None:
        """Note a job that loses its devices at a time."""
        self._from_s[name] = stopped_s + REQUEUE_DELAY_S

    def to_json(self) -> dict[str, float]:
        """Convert to plain data."""
        return self._from_s


class SlurmPreemption(Preemption):
    """Preemptions of one decision under the settings of Slurm.

    Args:
        kinds: settings that apply to each job. ``priority``: priority of each job.

    Attributes:
        wake_s: time at which the first running job may be preempted that may not be yet; inf if no waiting job could do so.
    """

    def __init__(
        self, plan: BackfillPlan, settings: SlurmSettings, kinds: Sequence[JobKind], priority: Sequence[float]
    ) -> None:
        super().__init__(
            plan, partial(in_slurms_order, reorder_count=settings.reorder_count, strict_order=settings.strict_order)
        )
        self._settings, self._kinds, self._priority = settings, kinds, priority
        self.wake_s = math.inf
        self._legal: dict[JobKind, list[int]] = {}
        self._within: dict[JobKind, bool] = {}
        self._held = sorted(np.flatnonzero(plan.state.devices).tolist(), key=self._place)
        self._held_kinds = {kinds[other] for other in self._held}

    def _place(self, other: int) -> tuple[float, ...]:
        """Return the place of a running job among the candidates: the first loses its devices first."""
        state, settings, kind = self.plan.state, self._settings, self._kinds[other]
        if settings.youngest_first:
            return (float(state.held_s[other]),)
        rank = kind.partition.tier if settings.preempt == "partition_prio" else kind.quality.priority
        nodes = placement_nodes(state.placements[other] if state.placements else ())
        return min(rank, MOST_WEIGHT), min(nodes, MOST_WEIGHT)

    def preempts(self, index: int, groups: Sequence[int]) -> bool:
        """Make room for a waiting job. Return whether enough devices were taken."""
        kind, priority = self._kinds[index], self._priority[index]
        if kind not in self._legal:
            below = {other for other in self._held_kinds if may_preempt(kind, other, self._settings)}
            held = [other for other in self._held if self._kinds[other] in below] if below else []
            self._legal[kind] = [other for other in held if self._is_candidate(other)]
            self._within[kind] = self._settings.preempt == "qos" and any(other.qos == kind.qos for other in below)
        candidates = self._legal[kind]
        if not candidates:
            return False
        if self._within[kind]:
            candidates = [each for each in candidates if self._kinds[each].qos != kind.qos or self._priority[each] < priority]
        return self.make_room(index, candidates, groups)

    def _is_candidate(self, other: int) -> bool:
        """Return whether a running job is no longer protected. If it is, note when it will not be."""
        if self._priority[other] >= self._settings.exempt_priority:
            return False
        state, job = self.plan.state, self.plan.state.jobs[other]
        held_s = float(state.held_s[other])
        until_s = max(exempt_s(self._kinds[other], self._settings), job.min_run_s)
        if held_s < until_s:
            self.wake_s = min(self.wake_s, state.time_s + until_s - held_s)
        return held_s >= until_s and not is_protected(job, held_s)
