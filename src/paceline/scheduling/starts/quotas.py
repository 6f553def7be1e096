"""Quotas of Kueue as nodes of a queue: each cluster queue has its nominal quota, and borrows what its cohort does not use."""

from __future__ import annotations

import math

import numpy as np

from paceline.errors import UserError
from paceline.scheduling.starts.waiting_queue import QueueNodes
from paceline.scheduling.traces.record import JobLog, QueueQuota


def nodes_of_quotas(log: JobLog) -> QueueNodes:
    """Return a node for each quota of a cluster queue, and the quotas that each cluster queue may use.

    A queue uses its own quota, and those of its cohort unless it may not borrow or they may not lend. Limits of borrowing and
    lending between nothing and all are not simulated, and neither is the return of borrowed quota by preemption.

    Raises:
        UserError: no finite quota of devices.
    """
    quotas = [quota for quota in log.quotas if math.isfinite(quota.devices) and quota.devices > 0]
    if not quotas:
        raise UserError(f"{log.file} has no quota of devices", "add the ClusterQueues, or give `cluster`")
    of_queue: dict[str, tuple[int, ...]] = {}
    limited = False
    for quota in log.quotas:
        usable = [at for at, other in enumerate(quotas) if _may_use(quota, other)]
        of_queue[quota.name] = tuple(sorted({*of_queue.get(quota.name, ()), *usable}))
        limited = limited or 0 < quota.borrowing < math.inf or 0 < quota.lending < math.inf
    for quota in log.quotas:
        for local in quota.local:
            of_queue[local.rpartition("/")[2]] = of_queue[quota.name]
            of_queue[local] = of_queue[quota.name]
    notes = ("Limits of borrowing and lending are taken as none, and no job is preempted.",) if limited else ()
    return QueueNodes(
        devices=np.array([int(quota.devices) for quota in quotas], np.int64),
        types=tuple(quota.device_type for quota in quotas),
        names=tuple(f"{quota.name} {quota.device_type}".strip() for quota in quotas),
        of_queue=of_queue,
        notes=notes,
    )


def _may_use(quota: QueueQuota, other: QueueQuota) -> bool:
    if quota.name == other.name:
        return quota.device_type == other.device_type
    lends = bool(quota.cohort) and quota.cohort == other.cohort and quota.borrowing > 0 and other.lending > 0
    return lends and quota.device_type == other.device_type
