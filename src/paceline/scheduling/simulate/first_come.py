"""Completion times as if all jobs that came before shared the whole cluster until their end, in order of arrival.

A rigid job cannot run on a share that is smaller than its devices. A job that later ones overtake again and again would still
count as fair on such a share. So it is also compared to the time without any later job: the fair start time (Sabin,
Kochhar, Sadayappan, ICPP 2004), with the devices as one pool.
"""

from __future__ import annotations

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.simulate.schedule import ClusterSchedule


def first_come_s(schedule: ClusterSchedule) -> Array:
    """Return the completion time of each job if all devices serve the jobs that arrived before it first.

    It is the time that the job held devices, after the device-seconds that jobs of earlier arrival still held at its arrival,
    over all devices. inf for a job whose devices may be chosen: it can run on a share at once. Shape (jobs,).
    """
    outcomes = schedule.outcomes
    arrival_s = np.array([outcome.job.arrival_s for outcome in outcomes])
    work_s = np.array([outcome.device_s for outcome in outcomes])
    order = np.argsort(arrival_s, kind="stable")
    before_s = np.zeros(len(outcomes))
    before_s[order] = work_s[order].cumsum() - work_s[order]
    spans = [
        (span.start_s, span.end_s, sum(count for _, count in span.placement) * outcome.job.share)
        for outcome in outcomes
        for span in outcome.spans
    ]
    starts_s, ends_s, held = np.array(spans, float).reshape(-1, 3).T
    done_s = _used_s(arrival_s, starts_s, held) - _used_s(arrival_s, ends_s, held)
    ran_s = np.array([sum(span.end_s - span.start_s for span in outcome.spans) for outcome in outcomes])
    rigid = np.array(["devices" not in outcome.job.adapts for outcome in outcomes], bool)
    waited_s = np.maximum(before_s - done_s, 0.0) / schedule.fleet.devices
    return np.where(rigid, waited_s + ran_s, np.inf)


def _used_s(moments: Array, starts_s: Array, held: Array) -> Array:
    """Return the device-seconds at each moment of devices that are held from their start on without an end."""
    order = np.argsort(starts_s, kind="stable")
    count = np.concatenate([[0.0], held[order].cumsum()])
    weighted = np.concatenate([[0.0], (held * starts_s)[order].cumsum()])
    passed = np.searchsorted(starts_s[order], moments, "right")
    return np.asarray(count[passed] * moments - weighted[passed])
