"""Policy of weighted dominant resource fairness (NSDI 2011, section 4.3): the least dominant share over weight is served next.

Each device type is a resource. A user is a job's virtual cluster, else its owner, else the job alone.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

import numpy as np

from paceline.scheduling.job import Job
from paceline.scheduling.state import Decision, State


def drf(state: State) -> Decision:
    """Serve users by the least dominant share over weight, and among equal ones by the larger weight, then by arrival.

    A user's next job, in order of arrival, gets the type that keeps the share least. Jobs that do not fit are skipped. The
    weight of a user is the largest of its jobs. So if one job only fits at a time, the user of the larger weight has it.
    """
    waiting: dict[str, list[int]] = defaultdict(list)
    weight: dict[str, float] = defaultdict(float)
    for index, job in enumerate(state.jobs):
        waiting[_user(job)].append(index)
        weight[_user(job)] = max(weight[_user(job)], job.weight)
    jobs, types = len(state.jobs), len(state.capacity)
    devices, kinds = np.zeros(jobs, np.int64), np.full(jobs, -1)
    left, capacity = state.capacity.tolist(), state.capacity.tolist()
    held = {user: [0] * types for user in waiting}
    heap = [(0.0, -weight[user], rank, user) for rank, user in enumerate(waiting)]
    heapq.heapify(heap)
    order = []
    while heap and any(left):
        _, _, rank, user = heapq.heappop(heap)
        mine = held[user]
        while waiting[user]:
            index = waiting[user].pop(0)
            asked, job, now = int(state.requested[index]), state.jobs[index], int(state.type_index[index])
            legal = [t for t in range(types) if left[t] >= asked and job.may_use(state.fleet.types[t])]
            if legal:
                kind = now if now in legal else min(legal, key=lambda t: (mine[t] + asked) / capacity[t])
                devices[index], kinds[index] = asked, kind
                left[kind] -= asked
                mine[kind] += asked
                order.append(index)
                share = max(part / there for part, there in zip(mine, capacity, strict=True) if there)
                heapq.heappush(heap, (share / weight[user], -weight[user], rank, user))
                break
    return Decision(devices=devices, type_index=kinds, order=[*order, *(set(range(jobs)) - set(order))])


def _user(job: Job) -> str:
    return f"cluster {job.virtual_cluster}" if job.virtual_cluster else f"owner {job.owner}" if job.owner else f"job {job.name}"
