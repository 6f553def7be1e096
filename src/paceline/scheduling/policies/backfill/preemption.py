"""Running jobs that lose their devices to a waiting one: which of them, in the order in which they may be taken."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from paceline.scheduling.placement import Placement
from paceline.scheduling.policies.backfill.availability import Availability
from paceline.scheduling.policies.backfill.plan import BackfillPlan

_ANYWHERE = frozenset((-1,))
"""Nodes of every job where single nodes are unknown."""


@dataclass(frozen=True)
class Room:
    """Room for a waiting job on one device type, if running jobs leave at once. Jobs in their grace count as gone.

    Args:
        seconds: expected length of the waiting job.
    """

    plan: BackfillPlan
    index: int
    group: int
    seconds: float

    def nodes(self, gone: Collection[int]) -> frozenset[int]:
        """Return the nodes on which the job starts without some running jobs; empty if it does not start.

        Reservations of earlier jobs are kept.
        """
        plan, now_s = self.plan, self.plan.state.time_s
        asked, job = int(plan.state.requested[self.index]), plan.state.jobs[self.index]
        available = self._available
        for other in gone:
            available.reserve(-int(plan.devices[other]), now_s, float(plan.ends_s[other]) - now_s)
        if available.least(now_s, self.seconds) < asked:
            return frozenset()
        if plan.nodes is None:
            return _ANYWHERE
        freed = [*(plan.state.placements[other] for other in gone), *(placement for placement, _ in plan.gone)]
        place = plan.nodes.place(self.group, asked, self.seconds, job.topology, job.pod_devices, freed)
        return frozenset(node for node, _ in place)

    @property
    def _available(self) -> Availability:
        """Free devices of the type over time, as if no job were in its grace."""
        state, available = self.plan.state, self.plan.available[self.group].copy()
        for placement, until_s in self.plan.gone:
            if placement and int(state.fleet.node_types[placement[0][0]]) == self.group and until_s > state.time_s:
                available.reserve(-sum(count for _, count in placement), state.time_s, until_s - state.time_s)
        return available

    def nodes_of(self, other: int) -> frozenset[int]:
        """Return the nodes of a running job."""
        if self.plan.nodes is None:
            return _ANYWHERE
        return frozenset(node for node, _ in self.plan.state.placements[other])


Choose = Callable[[Sequence[int], Room], list[int]]
"""Rule that returns the jobs to preempt, of candidates in their order; empty if they do not suffice."""


def first_that_suffice(candidates: Sequence[int], room: Room) -> int:
    """Return the length of the shortest beginning of the candidates whose devices suffice; 0 if all do not."""
    low, high = 1, 1
    while not room.nodes(candidates[:high]):
        if high >= len(candidates):
            return 0
        low, high = high + 1, min(2 * high, len(candidates))
    while low < high:
        half = (low + high) // 2
        low, high = (low, half) if room.nodes(candidates[:half]) else (half + 1, high)
    return low


def fewest(candidates: Sequence[int], room: Room) -> list[int]:
    """Choose the first candidates that suffice, without those whose devices are not needed."""
    chosen = list(candidates[: first_that_suffice(candidates, room)])
    for other in chosen[-2::-1]:
        fewer = [each for each in chosen if each != other]
        chosen = fewer if room.nodes(fewer) else chosen
    return chosen


@dataclass
class Preemption:
    """Preemptions of one decision.

    Attributes:
        plan: plan from which devices are taken.
        victims: running jobs that were preempted, with the waiting job of each.
    """

    plan: BackfillPlan
    choose: Choose
    victims: dict[int, int] = field(default_factory=dict)
    _in_vain: list[tuple[frozenset[int], int, float, tuple[tuple[str, ...], str, int]]] = field(default_factory=list)

    def make_room(self, index: int, candidates: Sequence[int], groups: Collection[int] | None = None) -> bool:
        """Take devices from running jobs for a waiting one. Return whether enough of them were taken.

        If they have a grace, the devices come free at its end.

        Args:
            candidates: running jobs that may be preempted for it, in the order in which they are.
        """
        plan, job, asked = self.plan, self.plan.state.jobs[index], int(self.plan.state.requested[index])
        there = [other for other in candidates if plan.devices[other]]
        options = plan.options(index, groups) if there else []
        if not options:
            return False
        every, shortest, shape = frozenset(there), options[0][0], (job.device_types, job.topology, job.pod_devices)
        if any(
            every <= before and asked >= least and shortest >= seconds and shape == same
            for before, least, seconds, same in self._in_vain
        ):
            return False
        for seconds, group in options:
            there_too = [other for other in there if plan.types[other] == group]
            room = Room(plan, index, group, seconds)
            if group in plan.closed or not there_too or room.nodes(()):
                continue
            if chosen := self.choose(there_too, room):
                for other in chosen:
                    self.victims[other] = index
                    plan.take(other)
                self._in_vain.clear()
                return True
        self._in_vain.append((every, asked, shortest, shape))
        return False


def placement_nodes(placement: Placement) -> int:
    """Return the number of nodes of a placement; 1 if it is unknown."""
    return len(placement) or 1
