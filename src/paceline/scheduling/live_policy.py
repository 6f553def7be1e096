"""A policy of the simulator, run live: the same pure function sees the same kind of state, made of what jobs have reported."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from paceline.array_types import Array, Ints
from paceline.errors import UserError
from paceline.scheduling.executors.executor import LiveJob, Placement
from paceline.scheduling.fleet import Fleet, NodeGroup
from paceline.scheduling.job import Job
from paceline.scheduling.journal import LiveRow
from paceline.scheduling.live import LiveDecision, LiveState
from paceline.scheduling.placement import RULES, repacked
from paceline.scheduling.placement import Placement as Numbered
from paceline.scheduling.state import Decision, Outlook, Policy, State

RESTART_S = 30.0


class ReportedOutlook:
    """What a job's own reports say of its speed; what it never tried counts as in proportion to the devices.

    Progress is in samples. Before its first report only ratios mean anything: the speed on one device counts as 1.
    """

    def __init__(self, row: LiveRow) -> None:
        self._row, self._sizes = row, row.job.sizes

    def goodput(self, device_type: int, most: int) -> Array:
        """Samples a second on 0 to ``most`` devices; between two legal sizes as on the smaller."""
        table = np.zeros(most + 1)
        for size in self._sizes:
            table[size:] = self._speed(size)
        return table

    def _speed(self, size: int) -> float:
        return self._row.samples_per_s(size) if self._row.speeds else float(size)

    def max_devices(self) -> int:
        """The largest legal size."""
        return self._sizes[-1]

    def seconds_left(self, device_type: int, most: int) -> Array:
        """From the samples that are left; NaN before the first report, or where the job does not say how far it is."""
        speed = self.goodput(device_type, most)
        left = self._row.job.samples_left(self._row.progress) if self._row.speeds else math.nan
        return np.where(speed > 0, left / np.where(speed > 0, speed, 1.0), math.inf)

    def relative_spread(self) -> float:
        """0 where its speed was reported; infinite before, when nothing is known."""
        return 0.0 if self._row.speeds else math.inf


class LiveAdapter:
    """Runs a policy on live states.

    Args:
        policy: the pure function.
        device: name of the devices, one type for all nodes.
        outlook: what is believed of a job; by default what it has reported.

    Raises:
        UserError: nodes of several sizes.
    """

    def __init__(
        self,
        policy: Policy,
        device: str,
        round_s: float,
        outlook: Callable[[LiveRow], Outlook] = ReportedOutlook,
        restart_s: float = RESTART_S,
    ) -> None:
        self._policy, self._device, self._round_s, self._outlook = policy, device, round_s, outlook
        self._restart_s = restart_s
        self._known: dict[str, int] = {}
        self._memory: object = None
        self._start_s: float | None = None

    def __call__(self, live: LiveState) -> LiveDecision:
        """Decide, and place what is decided: who keeps its number of devices stays, the rest goes where there is room."""
        self._known |= dict(live.nodes)
        self._start_s = live.now_s if self._start_s is None else self._start_s
        sizes = set(self._known.values())
        if len(sizes) > 1:
            raise UserError(
                f"the nodes have {' and '.join(map(str, sorted(sizes)))} devices", "use nodes of one size, or the policy even"
            )
        names = sorted(self._known)
        up = dict(live.nodes)
        fleet = Fleet((NodeGroup(self._device, len(names), sizes.pop()),))
        decision = self._policy(self._state(live, fleet, sum(up.values())))
        self._memory = decision.memory
        free = np.array([up.get(name, 0) for name in names], np.int64)
        wanted = [_legal(row.job, int(n)) for row, n in zip(live.rows, decision.devices, strict=True)]
        wanted = [0 if index in decision.removed else devices for index, devices in enumerate(wanted)]
        held = [
            tuple((names.index(node), n) for node, n in placed.items()) if all(node in up for node in placed) else ()
            for placed in (live.placed.get(row.name, {}) for row in live.rows)
        ]
        places = repacked(free, held, np.array(wanted)) if decision.repack else _kept(free, held, wanted, decision)
        placements = {
            row.name: {names[number]: count for number, count in sorted(place)}
            for row, place in zip(live.rows, places, strict=True)
            if place
        }
        named = [{live.rows[i].name: why for i, why in reasons.items()} for reasons in (decision.reasons, decision.removed)]
        return LiveDecision(placements, *named)

    def _state(self, live: LiveState, fleet: Fleet, capacity: int) -> State:
        rows, start_s = live.rows, self._start_s or live.now_s
        held = np.array([sum(live.placed.get(row.name, {}).values()) for row in rows], np.int64)
        jobs = [core_job(row, start_s) for row in rows]
        return State(
            time_s=live.now_s - start_s,
            round_s=self._round_s,
            fleet=fleet,
            capacity=np.array([capacity], np.int64),
            jobs=jobs,
            arrival_s=np.array([row.arrival_s - start_s for row in rows]),
            requested=np.array([job.devices for job in jobs], np.int64),
            devices=held,
            type_index=np.where(held > 0, 0, -1),
            attained_s=np.array([row.attained_s for row in rows]),
            run_s=np.array([[row.run_s] for row in rows]),
            restarts=np.array([max(row.starts - 1, 0) for row in rows], np.int64),
            outlooks=[self._outlook(row) for row in rows],
            restart_s=np.array(self._restart_s),
            memory=self._memory,
            curves=[np.array(row.curve) for row in rows],
        )


def _kept(free: Ints, held: Sequence[Numbered], wanted: Sequence[int], decision: Decision) -> list[Numbered]:
    """Who keeps the number of devices stays; the rest in the policy's order, where there is room."""
    places: list[Numbered] = [
        place if count and sum(n for _, n in place) == count else () for place, count in zip(held, wanted, strict=True)
    ]
    for place in places:
        for number, count in place:
            free[number] -= count
    for index in decision.order if decision.order is not None else range(len(wanted)):
        if wanted[index] and not places[index]:
            places[index] = RULES[decision.rule](free, wanted[index])
            for number, count in places[index]:
                free[number] -= count
    return places


def core_job(row: LiveRow, start_s: float) -> Job:
    """The job as the simulator's policies know it. A rigid policy gives an elastic job the least devices that it runs on."""
    job = row.job
    return Job(
        name=job.name,
        arrival_s=max(row.arrival_s - start_s, 0.0),
        devices=job.sizes[0],
        min_devices=job.sizes[0],
        max_devices=job.sizes[-1],
        adapts=frozenset({"devices"} if len(job.sizes) > 1 else ()),
        target="its own end",
    )


def _legal(job: LiveJob, devices: int) -> int:
    """The largest size of the job that is no more; 0 where there is none."""
    return max((size for size in job.sizes if size <= devices), default=0)


def even(live: LiveState) -> LiveDecision:
    """Everyone in turn gets one more device, in the order of arrival, while there are any: a policy without predictions."""
    sizes: Mapping[str, tuple[int, ...]] = {row.name: row.job.sizes for row in live.rows}
    counts, left = dict.fromkeys(sizes, 0), sum(devices for _, devices in live.nodes)
    grown = True
    while grown:
        grown = False
        for name, legal in sizes.items():
            larger = next((size for size in legal if size > counts[name]), None)
            if larger is not None and larger - counts[name] <= left:
                left -= larger - counts[name]
                counts[name], grown = larger, True
    free = dict(live.nodes)
    placements: dict[str, Placement] = {}
    for name, count in counts.items():
        placed = live.placed.get(name, {})
        if count and sum(placed.values()) == count and all(node in free for node in placed):
            placements[name] = placed
            for node, devices in placed.items():
                free[node] -= devices
    for name, count in counts.items():
        chosen: dict[str, int] = {}
        for node in sorted(free, key=lambda node: -free[node]) if name not in placements else ():
            take = min(free[node], count - sum(chosen.values()))
            if take:
                chosen[node] = take
                free[node] -= take
        if chosen:
            placements[name] = dict(sorted(chosen.items()))
    return LiveDecision(placements, {})


__all__ = ["RESTART_S", "LiveAdapter", "ReportedOutlook", "core_job", "even"]
