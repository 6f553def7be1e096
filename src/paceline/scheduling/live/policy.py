"""Adapter that runs a policy on live jobs: it builds the state from their reports, and turns decisions into placements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from paceline.array_types import Array, Ints
from paceline.scheduling.conditions import LIMIT_SLACK_S, decide
from paceline.scheduling.executors.executor import NodeDevices
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.launch import MOST_GRACE_S, Launch
from paceline.scheduling.live.journal import LiveRow
from paceline.scheduling.live.nodes import LiveNodes
from paceline.scheduling.live.outlook import ReportedOutlook
from paceline.scheduling.live.runner import Snapshot, Targets
from paceline.scheduling.placement import Domain, placed, repacked
from paceline.scheduling.placement import Placement as Numbered
from paceline.scheduling.policies.backfill.slurm_preemption import grace_s
from paceline.scheduling.queues.queues_file import Settings
from paceline.scheduling.queues.slurm_settings import SlurmSettings
from paceline.scheduling.state import Decision, Outlook, Policy, State
from paceline.units import format_seconds

RESTART_S = 30.0


Outlooks = Callable[[Snapshot, Fleet], Sequence[Outlook]]
"""Function from a snapshot and its fleet to the expected speed of each job."""


def reported(live: Snapshot, fleet: Fleet) -> Sequence[Outlook]:
    """Return the expected speed by each job's own reports."""
    return [ReportedOutlook(row) for row in live.rows]


class LiveAdapter:
    """Adapter that runs a policy on snapshots of a live cluster.

    Args:
        policy: the policy.
        round_s: seconds between decisions.
        nodes: device types of the nodes.
        outlooks: expected speeds; by default the job's own reports.
        restart_s: cost of a start before any was measured.
    """

    def __init__(
        self,
        policy: Policy,
        round_s: float,
        nodes: LiveNodes | None = None,
        outlooks: Outlooks = reported,
        restart_s: float = RESTART_S,
    ) -> None:
        self._policy, self._round_s, self._nodes, self._outlooks = policy, round_s, nodes or LiveNodes(), outlooks
        self._restart_s = restart_s
        self._known: dict[str, int] = {}

    def __call__(self, live: Snapshot) -> Targets:
        """Decide and place. Jobs that keep their number of devices stay, and the others go where there is room."""
        for there in live.placed.values():  # a lost node stays known while jobs are on it
            self._known |= {node: max(self._known.get(node, 0), devices) for node, devices in there.items()}
        self._known |= dict(live.nodes)
        if not sum(devices for _, devices in live.nodes):
            return Targets({}, memory=live.memory)
        fleet, names = self._nodes.fleet(self._known)
        up, number = dict(live.nodes), {name: place for place, name in enumerate(names)}
        free = np.array([up.get(name, 0) for name in names], np.int64)
        held = [
            tuple((number[node], n) for node, n in placed.items()) if all(node in up for node in placed) else ()
            for placed in (live.placed.get(row.name, {}) for row in live.rows)
        ]
        with np.errstate(all="ignore"):
            decision = decide(self._policy, self._state(live, fleet, number, free, held))
        decision = replace(decision, removed={**_past_limit(live.rows), **decision.removed})
        wanted = np.array([_legal(row.launch, int(n)) for row, n in zip(live.rows, decision.devices, strict=True)])
        wanted[list(decision.removed)] = 0
        places: list[Numbered] = [() for _ in live.rows]
        for group in range(len(fleet.groups)):
            mine = np.asarray(decision.type_index) == group
            of_type = np.where(fleet.node_types == group, free, 0)
            of_group = np.where(mine, wanted, 0)
            of_kind = (
                repacked(of_type, held, of_group)
                if decision.repack
                else _placements(of_type, held, of_group, decision, live.rows)
            )
            places = [place or before for place, before in zip(of_kind, places, strict=True)]
        placements = {
            row.name: {names[node]: count for node, count in sorted(place)}
            for row, place in zip(live.rows, places, strict=True)
            if place
        }
        reasons, removed = ({live.rows[i].name: why for i, why in by.items()} for by in (decision.reasons, decision.removed))
        return Targets(placements, reasons, removed, decision.memory)

    def _state(self, live: Snapshot, fleet: Fleet, number: Mapping[str, int], up: Ints, places: Sequence[Numbered]) -> State:
        rows, start_s = live.rows, live.start_s
        held = np.array([sum(live.placed.get(row.name, {}).values()) for row in rows], np.int64)
        on = [fleet.node_types[number[next(iter(live.placed[row.name]))]] if live.placed.get(row.name) else -1 for row in rows]
        jobs = [core_job(row, start_s) for row in rows]
        ran = np.zeros((len(rows), len(fleet.groups)))
        for index, row in enumerate(rows):
            for node, seconds in row.ran_on.items():
                device = self._nodes.kind(node).device
                ran[index, fleet.types.index(device) if device in fleet.types else 0] += seconds
        return State(
            time_s=live.now_s - start_s,
            round_s=self._round_s,
            fleet=fleet,
            capacity=np.bincount(fleet.node_types, up, len(fleet.groups)).astype(np.int64),
            jobs=jobs,
            arrival_s=np.array([row.arrival_s - start_s for row in rows]),
            requested=np.array([job.devices for job in jobs], np.int64),
            devices=held,
            type_index=np.array(on, np.int64),
            attained_s=np.array([row.attained_s for row in rows]),
            run_s=ran,
            restarts=np.array([max(row.starts - 1, 0) for row in rows], np.int64),
            outlooks=self._outlooks(live, fleet),
            restart_s=restarts(live, self._restart_s),
            memory=live.memory,
            curves=[np.array(row.curve) for row in rows],
            held_s=np.where(held > 0, np.maximum(live.now_s - np.array([row.since for row in rows]), 0.0), 0.0),
            placements=places,
            free=_left(up, places),
            ended=sum(row.run_s > 0 for row in live.past),
            ended_ran_s=sum(row.run_s for row in live.past),
            ended_ran_squared=sum(row.run_s**2 for row in live.past),
        )


def restarts(live: Snapshot, usual_s: float) -> Array:
    """Return the cost of a start of each job: as measured, else the mean of the others, else ``usual_s``."""
    measured = [row.restart_s for row in (*live.rows, *live.past) if row.restart_s is not None]
    usual = float(np.mean(measured)) if measured else usual_s
    return np.array([usual if row.restart_s is None else row.restart_s for row in live.rows])


def _left(up: Ints, places: Sequence[Numbered]) -> Ints:
    """Return the free devices of each node."""
    left = up.copy()
    for place in places:
        for node, count in place:
            left[node] -= count
    return np.maximum(left, 0)


def _past_limit(rows: Sequence[LiveRow]) -> dict[int, str]:
    """Return the jobs that have run longer than their limit, with the reason of their end."""
    limits = {index: row.launch.job.limit_s for index, row in enumerate(rows) if row.launch.job.limit_s}
    late = {index: limit_s for index, limit_s in limits.items() if rows[index].run_s > limit_s + LIMIT_SLACK_S}
    return {index: f"it reached its limit of {format_seconds(limit_s)}" for index, limit_s in late.items()}


def _placements(
    free: Ints, held: Sequence[Numbered], wanted: Ints, decision: Decision, rows: Sequence[LiveRow]
) -> list[Numbered]:
    """Return placements on these nodes. Jobs that keep their size stay; the others follow in the policy's order."""
    left = free.copy()
    places: list[Numbered] = [
        place if count and sum(n for _, n in place) == count and all(free[node] for node, _ in place) else ()
        for place, count in zip(held, wanted.tolist(), strict=True)
    ]
    for place in places:
        for node, count in place:
            left[node] -= count
    for index in decision.order if decision.order is not None else range(len(wanted)):
        if wanted[index] and not places[index]:
            domain: Domain = "node" if rows[index].launch.job.topology == "node" else ""
            place = decision.placements.get(index, ())
            free_there = sum(n for _, n in place) == wanted[index] and all(left[node] >= n for node, n in place)
            places[index] = place if place and free_there else placed(decision.rule, left, int(wanted[index]), domain=domain)
            for node, count in places[index]:
                left[node] -= count
    return places


def core_job(row: LiveRow, start_s: float) -> Job:
    """Return the job of a row as policies take it. A rigid policy gives an elastic job its least number of devices."""
    launch, after_s = row.launch, row.arrival_s - start_s
    sizes = launch.sizes
    return replace(
        launch.job,
        arrival_s=max(after_s, 0.0),
        devices=sizes[0],
        min_devices=sizes[0],
        max_devices=sizes[-1],
        batch=launch.global_batch,
        adapts=frozenset({"devices"} if len(sizes) > 1 else ()),
        deadline_s=after_s + launch.job.deadline_s,
    )


def _legal(launch: Launch, devices: int) -> int:
    """Return the largest size of the job up to ``devices``; 0 if there is none."""
    return max((size for size in launch.sizes if size <= devices), default=0)


def even(live: Snapshot) -> Targets:
    """Give each job one more device in turn, in order of arrival, until none are left. This policy needs no predictions."""
    sizes: Mapping[str, tuple[int, ...]] = {row.name: row.launch.sizes for row in live.rows}
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
    placements: dict[str, NodeDevices] = {}
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
    return Targets(placements, {})


def with_grace(launch: Launch, queues: Settings | None) -> Launch:
    """Return a launch with at least the ``GraceTime`` of its QOS or partition in Slurm's settings."""
    if not isinstance(queues, SlurmSettings):
        return launch
    job = launch.job
    kind = queues.kind(job.virtual_cluster, job.owner, job.queue, job.qos)
    return replace(launch, grace_s=min(max(launch.grace_s, grace_s(kind, queues)), MOST_GRACE_S))
