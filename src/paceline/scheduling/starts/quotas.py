"""Quotas of Kueue or Volcano as nodes of a queue whose machines are unknown: one node for each flavor."""

from __future__ import annotations

from collections import Counter

import numpy as np

from paceline.errors import UserError
from paceline.scheduling.queues.kueue_settings import KueueSettings
from paceline.scheduling.starts.queue_nodes import QueueNodes
from paceline.scheduling.traces.logs.volcano import ANY_DEVICE


def nodes_of_quotas(settings: KueueSettings, file: str = "the file") -> QueueNodes:
    """Return a node for each flavor, with the quotas of all queues and cohorts, and the flavors of each cluster queue.

    Raises:
        UserError: no quota of devices.
    """
    devices: Counter[str] = Counter()
    for quotas in (holder.quotas for every in (settings.queues, settings.cohorts) for holder in every.values()):
        for flavor, quota in quotas.items():
            devices[flavor] += quota.nominal + (quota.borrowing_limit or 0 if flavor == ANY_DEVICE else 0)
    if not devices.total():
        raise UserError(f"{file} has no quota of devices", "add the ClusterQueues, or give `cluster`")
    flavors = list(devices)
    return QueueNodes(
        devices=np.array([devices[flavor] for flavor in flavors], np.int64),
        types=tuple(settings.flavors.get(flavor, "") for flavor in flavors),
        names=tuple(flavors),
        of_queue={
            name: tuple(at for at, flavor in enumerate(flavors) if flavor in queue.quotas)
            for name, queue in settings.queues.items()
        },
        quotas=True,
    )
