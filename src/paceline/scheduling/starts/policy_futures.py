"""Futures of a queue in the simulator, under the policy of its scheduler with the scheduler's own settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from paceline.array_types import Array
from paceline.errors import LARGEST_COUNT
from paceline.scheduling.job import Job
from paceline.scheduling.placement import Placement
from paceline.scheduling.queues.slurm_settings import SlurmSettings
from paceline.scheduling.simulate.run import DurationRun, JobRun
from paceline.scheduling.simulate.schedule import ClusterSettings, JobOutcome, RunningJob
from paceline.scheduling.simulate.simulator import simulate
from paceline.scheduling.starts.admission import BlockedQueues, refusal
from paceline.scheduling.starts.backfill import UNLIMITED_S
from paceline.scheduling.starts.future import FARTHEST_S, Coming
from paceline.scheduling.starts.policy_cluster import PolicyCluster
from paceline.scheduling.starts.preemptions import PreemptionCounts
from paceline.scheduling.traces.record import LoggedJob

OVER_S = 60.0
"""Time that a running job over its limit is given. Slurm checks limits once a minute."""
Progress = Callable[[int, int], None]
"""Callback that receives the number of futures that are done, and of all."""


@dataclass(frozen=True)
class FutureStarts:
    """Starts of some waiting jobs.

    Attributes:
        start_s: seconds after the present; inf: never; shape (futures, jobs).
        length_s: seconds from the start to the end, with those in which it was preempted; shape (futures, jobs).
        reasons: the policy's reason why a job waits at present, by its row.
        preemptions: jobs that start by preemption or lose their devices.
    """

    start_s: Array
    length_s: Array
    reasons: dict[int, str]
    preemptions: PreemptionCounts = field(default_factory=PreemptionCounts)


def futures_under_policy(
    cluster: PolicyCluster,
    jobs: Sequence[LoggedJob],
    placements: Sequence[Placement],
    now_s: float,
    length_s: Array,
    coming: Sequence[Coming],
    targets: Sequence[int],
    blocked: BlockedQueues | None = None,
    progress: Progress | None = None,
) -> FutureStarts:
    """Simulate futures until the targets have started, and have ended if the policy may preempt them.

    A preempted job continues its work when it starts again.

    Args:
        jobs: running jobs, waiting jobs, and jobs that may come.
        placements: devices of each running job, by node of the queue.
        length_s: whole length of each job in each future, of shape (futures, jobs).
        coming: arrivals of each future in seconds after the present, with their rows.
        targets: rows of waiting jobs; those that can never start have infinite times.
        blocked: queues whose first job can never be admitted.
    """
    blocked = blocked or BlockedQueues({})
    origin_s = min([now_s, *(job.submit_s for job in jobs if job.submit_s <= now_s)])
    start_s = now_s - origin_s
    held = {row: place for row, place in enumerate(_placements(cluster, placements)) if place}
    later = {row for _, rows in coming for row in rows.tolist()}
    made: dict[int, Job] = {}
    for row, job in enumerate(jobs):
        if row < len(placements):
            if row in held:
                made[row] = _job(cluster, job, row, origin_s, now_s, sum(count for _, count in held[row]))
        elif job.devices <= cluster.most(job) and not refusal(job, cluster, blocked):
            made[row] = _job(cluster, job, row, origin_s, now_s, job.devices)
    present = [made[row] for row in made if row not in later]
    running = {
        made[row].name: RunningJob(
            place, max(start_s - made[row].arrival_s if math.isnan(jobs[row].run_s) else jobs[row].run_s, 0)
        )
        for row, place in held.items()
    }
    settings = ClusterSettings(round_s=0.0, restart_s=0.0, longest_s=start_s + FARTHEST_S)
    targets_made = [(at, row) for at, row in enumerate(targets) if row in made]
    names = [made[row].name for _, row in targets_made]
    starts, lengths = np.full((len(length_s), len(targets)), math.inf), length_s[:, list(targets)].copy()
    reasons: dict[int, str] = {}
    preemptions = PreemptionCounts()
    for future, (moments, rows) in enumerate(coming if names else ()):
        comes = [
            replace(made[row], arrival_s=start_s + max(moment, 1e-3))
            for moment, row in zip(moments.tolist(), rows.tolist(), strict=True)
            if row in made
        ]
        drawn = length_s[future]

        def run(job: Job, drawn: Array = drawn) -> JobRun:
            row = int(job.name)
            ran_s = running[job.name].ran_s if job.name in running else 0.0
            return DurationRun(job, left_s=max(float(drawn[row]) - ran_s, 1.0))

        done = simulate(
            [*present, *comes],
            cluster.fleet,
            cluster.quick_policy if future else cluster.policy,
            run,
            settings,
            start_s=start_s,
            running=running,
            targets=names,
            to_ends=cluster.preempts,
        )
        found = {outcome.job.name: outcome for outcome in done.outcomes}
        preemptions.add(found)
        for at, row in targets_made:
            outcome = found[made[row].name]
            starts[future, at] = outcome.start_s - start_s if outcome.spans else math.inf
            lengths[future, at] = _length(outcome, float(lengths[future, at])) if outcome.spans else lengths[future, at]
            if not future and outcome.held_back and outcome.held_back[0][0] <= start_s:
                reasons[row] = outcome.held_back[0][1]
        if progress is not None:
            progress(future + 1, len(coming))
    return FutureStarts(starts, lengths, reasons, preemptions)


def _length(outcome: JobOutcome, drawn_s: float) -> float:
    """Return the time from the first start to the end; the drawn length if the end was not simulated."""
    end_s = outcome.end_s if outcome.removed_s is None else outcome.removed_s
    return drawn_s if math.isnan(end_s) else end_s - outcome.start_s


def _placements(cluster: PolicyCluster, placements: Sequence[Placement]) -> list[Placement]:
    """Return devices by node of the fleet, on nodes of one type. Devices beyond those of the nodes are left out."""
    free = cluster.fleet.node_devices.copy()
    found: list[Placement] = []
    for placement in placements:
        by_group: dict[int, dict[int, int]] = {}
        for node, count in placement:
            there = by_group.setdefault(int(cluster.group_of[node]), {})
            at = int(cluster.node_of[node])
            there[at] = there.get(at, 0) + count
        most = max(by_group.values(), key=lambda there: sum(there.values()), default={})
        kept = tuple((node, min(count, int(free[node]))) for node, count in most.items() if free[node] > 0)
        for node, count in kept:
            free[node] -= count
        found.append(kept)
    return found


def _job(cluster: PolicyCluster, job: LoggedJob, row: int, origin_s: float, now_s: float, devices: int) -> Job:
    """Return a job of the simulator, whose name is its row. Its stated duration is its limit, as far as the policy knows."""
    types = tuple(cluster.fleet.types[group] for group in cluster.groups(job))
    ran_s = job.run_s if job.state == "running" and job.run_s > 0 else 0.0
    limit_s = max(job.limit_s, ran_s + OVER_S) if job.limit_s else 0.0
    is_slurm = isinstance(cluster.settings, SlurmSettings)
    counts_priority = not is_slurm or not cluster.settings.multifactor  # type: ignore[union-attr]
    priority = job.priority if counts_priority and math.isfinite(job.priority) else 0.0
    arrival_s = max(min(job.submit_s, now_s), origin_s) if not math.isnan(job.submit_s) else now_s
    single = not cluster.nodes.quotas and (job.topology == "node" or (is_slurm and job.nodes == 1))
    alone = max((cluster.fleet.groups[group].devices_per_node for group in cluster.groups(job)), default=0)
    return Job(
        name=str(row),
        arrival_s=arrival_s - origin_s,
        devices=devices,
        duration_s=min(limit_s or UNLIMITED_S, UNLIMITED_S),
        limit_s=limit_s if is_slurm else 0.0,
        device_types=() if len(types) == len(cluster.fleet.types) else types,
        priority=int(max(-LARGEST_COUNT, min(LARGEST_COUNT, priority))),
        preemptible=job.preemptible,
        topology="node" if single and 1 < devices <= alone else "",
        pod_devices=cluster.pod_devices(job) if devices == job.devices else 0,
        owner=job.user,
        virtual_cluster=job.account,
        queue=job.queue.split(",")[0],
        qos=job.qos,
        resources=job.resources,
        array=job.array,
        array_limit=job.throttle,
    )
