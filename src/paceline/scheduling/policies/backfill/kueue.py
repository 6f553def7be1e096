"""Policy of Kueue: queues with quotas that borrow in cohorts, and preemption within and between queues.

Kueue 0.14: concepts/cluster_queue, concepts/preemption and concepts/admission of its documentation. Kueue keeps no devices
for a job that waits: under ``BestEffortFIFO`` small jobs may pass a large one for as long as they come. A stopped queue still
lends its quota, as ``accumulateFromChild`` of its pkg/cache counts every child of a cohort, active or not. Its running jobs are
not in the snapshot of the scheduler, and are not preempted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.errors import UserError, shorten
from paceline.scheduling.conditions import is_protected
from paceline.scheduling.job import Job
from paceline.scheduling.policies.backfill.plan import BackfillPlan
from paceline.scheduling.queues.kueue_settings import ClusterQueue, KueueSettings, Quota
from paceline.scheduling.queues.quota_tree import QuotaTree
from paceline.scheduling.state import Decision, State
from paceline.scheduling.traces.type_names import types_meant

DEFAULT = KueueSettings()


def kueue(state: State, settings: KueueSettings = DEFAULT) -> Decision:
    """Admit the first job of each queue in turn: queues that do not borrow first, then by fair share, priority and arrival."""
    return _Admission(state, _complete(settings, state)).decision()


def _complete(settings: KueueSettings, state: State) -> KueueSettings:
    """Return the settings, or those of one queue of all devices if there are none."""
    if settings.queues:
        return settings
    nominal = {name: Quota(nominal=int(count)) for name, count in zip(state.fleet.types, state.capacity, strict=True)}
    return KueueSettings(queues={"all": ClusterQueue(quotas=nominal)})


def queue_of(job: Job, settings: KueueSettings) -> str:
    """Return the cluster queue of a job: by its ``queue``, else its ``virtual_cluster``, else the only one.

    Raises:
        UserError: a job of no queue.
    """
    for name in (job.queue, job.virtual_cluster):
        if name in settings.local_queues:
            return settings.local_queues[name]
        if name in settings.queues:
            return name
    if len(settings.queues) == 1:
        return next(iter(settings.queues))
    raise UserError(
        f"job {shorten(job.name, 40)!r} is in queue {shorten(job.queue or job.virtual_cluster, 40)!r}",
        f"name one of {', '.join(list(settings.queues)[:8])} in its column queue",
    )


def flavor_groups(settings: KueueSettings, types: Sequence[str]) -> dict[str, int]:
    """Return the device type of each flavor, by its number. Flavors of types that the cluster lacks are left out."""
    flavors = dict.fromkeys(flavor for queue in settings.queues.values() for flavor in queue.quotas)
    meant = {flavor: types_meant(settings.flavors.get(flavor, flavor), types) for flavor in flavors}
    if len(types) == 1:  # any flavor is of the only type
        meant = {flavor: found or tuple(types) for flavor, found in meant.items()}
    return {flavor: types.index(found[0]) for flavor, found in meant.items() if found}


@dataclass(frozen=True, slots=True)
class _Offer:
    """Flavor for a job, and the running jobs that must leave for it."""

    flavor: str
    group: int
    borrows: bool
    targets: tuple[int, ...] = ()


class _Admission:
    """One round of admissions."""

    def __init__(self, state: State, settings: KueueSettings) -> None:
        self.state, self.settings = state, settings
        self.groups = flavor_groups(settings, state.fleet.types)
        self.flavors = {
            name: [flavor for flavor in queue.quotas if flavor in self.groups] for name, queue in settings.queues.items()
        }
        self.stopped = {*settings.stopped, *(name.rpartition("/")[2] for name in settings.stopped)} - set(settings.queues)
        self.tree = QuotaTree(settings, self.groups)
        self.plan = BackfillPlan(state)
        self.queues = [queue_of(job, settings) for job in state.jobs]
        self.preemptible: dict[int, str] = {}
        self.preempted, self.reserved = set[int](), set[int]()
        self.victims: dict[int, int] = {}
        for index in np.flatnonzero(state.devices).tolist():
            flavor = self._flavor(index)
            if self._drains(index):
                self.plan.take(index)
                self.preempted.add(index)
            elif flavor:
                if not is_protected(state.jobs[index], float(state.held_s[index])):
                    self.preemptible[index] = flavor
                self.tree.add(self.queues[index], flavor, int(state.devices[index]))
        self._whys: dict[tuple[str, int, int], str] = {}
        self._loans: dict[tuple[str, int, int], tuple[bool, float]] = {}
        self._failed: dict[str, list[tuple[int, int, tuple[str, ...]]]] = {}

    def _drains(self, index: int) -> bool:
        """Return whether the queue of a job evicts its running jobs."""
        own, settings = self.state.jobs[index].queue, self.settings
        local = own not in settings.queues and any(own in (path, path.rpartition("/")[2]) for path in settings.drained)
        return local or settings.queues[self.queues[index]].drains

    def _flavor(self, index: int) -> str:
        """Return the flavor of a running job."""
        group = int(self.state.type_index[index])
        return next((flavor for flavor in self._flavors(self.queues[index]) if self.groups[flavor] == group), "")

    def _flavors(self, queue: str) -> list[str]:
        return self.flavors[queue]

    def decision(self) -> Decision:
        """Return the decision of as many cycles as admit or preempt anything."""
        state = self.state
        waiting = np.flatnonzero(state.devices == 0).tolist()
        waiting.sort(key=self._place)
        queued = waiting
        while queued:
            left = self._cycle(queued)
            gone = {index for index in left if state.jobs[index].grace_s == 0}  # others still hold their devices
            queued = [index for index in queued if not self.plan.devices[index] and index not in self.reserved]
            queued = sorted({*queued, *gone}, key=self._place) if left else []
        for index in self.preempted:
            if self._drains(index):
                self.plan.reasons[index] = f"cluster queue {self.queues[index]} is stopped, and evicts: its stopPolicy"
        return replace(self.plan.decision([*waiting, *sorted(self.preempted)]), preempted=self.victims)

    def _place(self, index: int) -> tuple[int, float, int]:
        """Return the place of a job in its queue, the smallest first."""
        return -self.state.jobs[index].priority, float(self.state.arrival_s[index]), index

    def _cycle(self, waiting: Sequence[int]) -> set[int]:
        """Try each job once, and return the jobs that were preempted."""
        settings, before = self.settings, set(self.preempted)
        lines: dict[str, list[int]] = {}
        for index in waiting:
            if self.state.jobs[index].queue in self.stopped:
                self.plan.reasons[index] = f"local queue {self.state.jobs[index].queue} is stopped: its stopPolicy"
            elif settings.queues[self.queues[index]].stopped:
                self.plan.reasons[index] = f"cluster queue {self.queues[index]} is stopped: its stopPolicy"
            else:
                lines.setdefault(self.queues[index], []).append(index)
                self.plan.reasons.pop(index, None)
        while lines:
            heads = sorted((self._rank(line[0]), queue) for queue, line in lines.items())
            for _, queue in heads:
                index = lines[queue].pop(0)
                waits = not self._admit(index)
                blocked = waits and settings.queues[queue].strategy == "StrictFIFO"
                if waits:
                    self.plan.reasons[index] = self._why(index)
                for later in lines[queue] if blocked else ():
                    self.plan.reasons[later] = f"cluster queue {queue} is StrictFIFO: {self.state.jobs[index].name} comes first"
                if blocked or not lines[queue]:
                    del lines[queue]
        return self.preempted - before

    def _why(self, index: int) -> str:
        """Return the reason why a job waits: its quota, its borrowing limit, or devices."""
        key = self.queues[index], int(self.state.requested[index]), self.tree.version
        if key not in self._whys:
            self._whys[key] = self._reason(*key[:2])
        return self._whys[key]

    def _reason(self, queue: str, asked: int) -> str:
        for flavor in self._flavors(queue):
            quota, left = self.settings.queues[queue].quotas[flavor], self.tree.available(queue, flavor)
            if left < asked:
                limit = "" if quota.borrowing_limit is None else f", and may borrow {quota.borrowing_limit:,}"
                owned = f"cluster queue {queue} owns {quota.nominal:,} {flavor}{limit}"
                return (
                    f"{owned}: {max(left, 0):,} of its quota and what it may borrow were left, and the job asks for {asked:,}"
                )
        return f"the quota of cluster queue {queue} suffices, devices do not: it asks for {asked:,}"

    def _rank(self, index: int) -> tuple[bool, float, int, float, int]:
        """Return the order of the head of a queue, the smallest first."""
        state = self.state
        key = self.queues[index], int(state.requested[index]), self.tree.version
        if key not in self._loans:
            self._loans[key] = self._loan(*key[:2])
        return *self._loans[key], -state.jobs[index].priority, float(state.arrival_s[index]), index

    def _loan(self, queue: str, asked: int) -> tuple[bool, float]:
        """Return whether a queue would borrow for a number of devices, and its share value."""
        flavor = next((flavor for flavor in self._flavors(queue) if self.tree.available(queue, flavor) >= asked), "")
        borrows = bool(flavor) and self.tree.borrows(queue, flavor, asked)
        share = self.tree.share(queue, {flavor: asked}) if self.settings.fair_sharing and flavor else 0.0
        return borrows, share

    def _admit(self, index: int) -> bool:
        """Start a job, or make room for it. Return False if it must wait."""
        queue, asked = self.queues[index], int(self.state.requested[index])
        waits_for_devices = False
        for flavor in self._flavors(queue):
            if self.tree.available(queue, flavor) < asked:
                continue
            if self.plan.start(index, [self.groups[flavor]]):
                self._count(index, flavor)
                return True
            if self.state.leaving and self._reserve(index, flavor):
                self._count(index, flavor)
                return True
            waits_for_devices = True
        if waits_for_devices or self._known_to_fail(index):
            return False
        for flavor in self._flavors(queue):
            group = self.groups[flavor]
            if not self.plan.options(index, [group]):
                continue
            targets = self._targets(index, flavor)
            if targets is None:
                continue
            for other in targets:
                self.tree.add(self.queues[other], flavor, -int(self.plan.devices[other]))
                self.preemptible.pop(other, None)
                self.preempted.add(other)
                self.victims[other] = index
                self.plan.take(other)
            self._count(index, flavor)
            self._failed.clear()
            return self.plan.start(index, [group]) or self._reserve(index, flavor)
        self._failed.setdefault(queue, []).append((self.state.jobs[index].priority, asked, self.state.jobs[index].device_types))
        return False

    def _reserve(self, index: int, flavor: str) -> bool:
        """Keep devices for a job until others have left."""
        if not self.plan.reserve(index, [self.groups[flavor]]):
            return False
        self.reserved.add(index)
        return True

    def _count(self, index: int, flavor: str) -> None:
        self.tree.add(self.queues[index], flavor, int(self.state.requested[index]))

    def _known_to_fail(self, index: int) -> bool:
        """Return whether a job that asked for no more found no room before."""
        job, asked = self.state.jobs[index], int(self.state.requested[index])
        failed = self._failed.get(self.queues[index], ())
        return any(job.priority <= other and asked >= count and job.device_types == types for other, count, types in failed)

    def _targets(self, index: int, flavor: str) -> list[int] | None:
        """Return running jobs that must leave for a job; None if they may not, or do not suffice."""
        queue, asked, tree = self.queues[index], int(self.state.requested[index]), self.tree
        stated = self.settings.queues[queue]
        if asked > stated.quotas[flavor].nominal and not stated.borrow_within and not self.settings.fair_sharing:
            return None
        candidates = self._candidates(index, flavor)
        if not candidates:
            return None
        own = [other for other in candidates if self.queues[other] == queue]
        if self.settings.fair_sharing:
            return self._fair_targets(index, flavor, candidates)
        attempts: list[tuple[list[int], bool]] = []
        if len(own) == len(candidates):
            attempts.append((own, True))
        elif stated.borrow_within:
            attempts.append(([other for other in candidates if self.queues[other] == queue or self._below(index, other)], True))
        if not tree.borrows(queue, flavor, asked):
            attempts.append((candidates, False))
        attempts.append((own, True))
        for chosen, may_borrow in attempts:
            if (targets := self._fewest(index, flavor, chosen, may_borrow)) is not None:
                return targets
        return None

    def _below(self, index: int, other: int) -> bool:
        """Return whether a job of another queue may be preempted for one that borrows."""
        limit = self.settings.queues[self.queues[index]].borrow_threshold
        low = self.state.jobs[other].priority
        return low < self.state.jobs[index].priority and (limit is None or low <= limit)

    def _lends(self, queue: str, other: str, flavor: str) -> bool:
        """Return whether another queue of the cohort borrows devices that a queue may take back."""
        return self.tree.related(queue, other, flavor) and self.tree.borrows(other, flavor)

    def _candidates(self, index: int, flavor: str) -> list[int]:
        state, queue, job = self.state, self.queues[index], self.state.jobs[index]
        stated = self.settings.queues[queue]
        reclaims = stated.reclaim != "Never"
        lending = {
            name: reclaims and not other.stopped and self._lends(queue, name, flavor)
            for name, other in self.settings.queues.items()
        }
        if stated.within != "Never":
            lending[queue] = True
        if not any(lending.values()):
            return []
        found = []
        for other, its in self.preemptible.items():
            if its != flavor or not lending[self.queues[other]]:
                continue
            theirs, low = self.queues[other], state.jobs[other].priority
            if theirs == queue:
                newer = low == job.priority and state.arrival_s[other] > state.arrival_s[index]
                legal = (low < job.priority and stated.within != "Never") or (
                    newer and stated.within == "LowerOrNewerEqualPriority"
                )
            else:
                legal = lending[theirs] and (
                    stated.reclaim == "Any" or (stated.reclaim == "LowerPriority" and low < job.priority)
                )
            if legal:
                found.append(other)
        return sorted(found, key=lambda job: (self.queues[job] == queue, state.jobs[job].priority, state.held_s[job]))

    def _fits(self, index: int, flavor: str, may_borrow: bool, freed: int) -> bool:
        queue, asked, group = self.queues[index], int(self.state.requested[index]), self.groups[flavor]
        if self.tree.available(queue, flavor) < asked or (not may_borrow and self.tree.borrows(queue, flavor, asked)):
            return False
        return self.plan.free_now(group) + freed >= asked

    def _fewest(self, index: int, flavor: str, candidates: Sequence[int], may_borrow: bool) -> list[int] | None:
        """Return the first candidates that suffice, without those that are not needed."""
        targets: list[int] = []
        for other in candidates:
            if self._fits(index, flavor, may_borrow, self._freed(targets)):
                break
            theirs = self.queues[other]
            if theirs != self.queues[index] and not self.tree.borrows(theirs, flavor):
                continue
            self.tree.add(theirs, flavor, -int(self.plan.devices[other]))
            targets.append(other)
        return self._restored(index, flavor, targets, lambda freed: self._fits(index, flavor, may_borrow, freed))

    def _freed(self, targets: Sequence[int]) -> int:
        return sum(int(self.plan.devices[other]) for other in targets)

    def _restored(self, index: int, flavor: str, targets: list[int], fits: Callable[[int], bool]) -> list[int] | None:
        """Drop targets that are not needed, the last first, and restore the usage. Return None if all do not suffice."""
        enough = fits(self._freed(targets))
        for other in list(reversed(targets)) if enough else ():
            count = int(self.plan.devices[other])
            self.tree.add(self.queues[other], flavor, count)
            if fits(self._freed(targets) - count):
                targets.remove(other)
            else:
                self.tree.add(self.queues[other], flavor, -count)
        for other in targets:
            self.tree.add(self.queues[other], flavor, int(self.plan.devices[other]))
        return targets if enough and targets else None

    def _fair_targets(self, index: int, flavor: str, candidates: Sequence[int]) -> list[int] | None:
        """Return targets of queues with a larger share: first such that keep at least ours, then such that had more."""
        queue, asked, tree = self.queues[index], int(self.state.requested[index]), self.tree
        targets: list[int] = []
        for final in (True, False):
            lines: dict[str, list[int]] = {}
            for other in candidates:
                if other not in targets:
                    lines.setdefault(self.queues[other], []).append(other)
            while lines and not self._fits(index, flavor, True, self._freed(targets)):
                theirs = max(lines, key=lambda name: (tree.share(name), name))
                other = lines[theirs].pop(0)
                if not lines[theirs]:
                    del lines[theirs]
                ours, count = tree.share(queue, {flavor: asked}), int(self.plan.devices[other])
                later = tree.share(theirs, {flavor: -count})
                if theirs == queue or (ours <= later if final else ours < tree.share(theirs)):
                    tree.add(theirs, flavor, -count)
                    targets.append(other)
        return self._restored(index, flavor, targets, lambda freed: self._fits(index, flavor, True, freed))
