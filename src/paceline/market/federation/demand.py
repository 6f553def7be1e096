"""Build the arrays that the simulation takes from a federation's jobs and devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from paceline.market.federation.federation_state import FederationDemand, Rules
from paceline.market.federation.site import Federation
from paceline.scheduling.fleet import NodeGroup
from paceline.scheduling.job import Job

UNLIMITED = 1 << 40
Speed = Callable[[Job, str, str], float]
"""Relative speed of a job on a device type: (job, home type, type) -> ratio. 0: unknown, the job does not run there."""


def demand_of(federation: Federation, speed: Speed | None = None) -> FederationDemand:
    """Return all jobs of all sites in order of arrival, with one pool per site and device type.

    The duration of a job refers to the first type of its site that can hold it. Jobs that name device types keep to them.

    Args:
        speed: prediction for models whose speed the federation does not state.
    """
    pools = [(number, group) for number, site in enumerate(federation.sites) for group in site.fleet.groups]
    jobs = _order(federation)
    kinds: dict[tuple[object, ...], int] = {}
    rows: list[tuple[int, int, float, float, tuple[float, ...], tuple[float, ...]]] = []
    of_row: dict[tuple[object, ...], int] = {}
    kind = np.empty(len(jobs), np.int64)
    devices = np.empty(len(jobs), np.int64)
    duration = np.empty(len(jobs))
    for place, (_, number, index) in enumerate(jobs):
        job = federation.sites[number].jobs[index]
        asked = (number, job.devices, job.device_types, job.model)
        if asked not in kinds:
            size, saved = (
                table.get(job.model, table.get("", 0.0)) for table in (federation.data_bytes, federation.checkpoint_bytes)
            )
            row = (number, job.devices, size, saved, *_speeds_and_delays(federation, pools, number, job, size, speed))
            if row not in of_row:  # models with the same speeds everywhere share a kind
                of_row[row] = len(rows)
                rows.append(row)
            kinds[asked] = of_row[row]
        kind[place], devices[place], duration[place] = kinds[asked], job.devices, job.duration_s
    speeds = np.array([row[4] for row in rows], float)
    return FederationDemand(
        arrival_s=np.array([arrival for arrival, _, _ in jobs], float),
        duration_s=duration,
        devices=devices,
        site=np.array([number for _, number, _ in jobs], np.int64),
        kind=kind,
        patience_s=np.array([federation.sites[number].cloud_after_s for _, number, _ in jobs], float),
        kind_site=np.array([row[0] for row in rows], np.int64),
        speed=speeds,
        believed=speeds,
        delay_s=np.array([row[5] for row in rows], float),
        cloud_speed=np.ones(len(rows)),
        data_bytes=np.array([row[2] for row in rows], float),
        checkpoint_bytes=np.array([row[3] for row in rows], float),
        capacity=np.array([group.devices for _, group in pools], np.int64),
        pool_site=np.array([number for number, _ in pools], np.int64),
    )


def jobs_in_order(federation: Federation) -> tuple[Job, ...]:
    """Return the jobs in the order of ``demand_of``."""
    return tuple(federation.sites[number].jobs[index] for _, number, index in _order(federation))


def _order(federation: Federation) -> list[tuple[float, int, int]]:
    """Return arrival, site and index at the site of every job, sorted by arrival.

    Sites with jobs that arrive together take turns job by job, and the order of the sites reverses with every turn (A B, B A).
    """
    ordered: list[tuple[float, int, int]] = []
    arrivals = sorted(
        (job.arrival_s, number, index) for number, site in enumerate(federation.sites) for index, job in enumerate(site.jobs)
    )
    forward = True
    for _, together in itertools.groupby(arrivals, key=lambda arrival: arrival[0]):
        by_site = [list(own) for _, own in itertools.groupby(together, key=lambda arrival: arrival[1])]
        for turn in itertools.zip_longest(*by_site):
            jobs = [job for job in turn if job is not None]
            ordered += jobs if forward else reversed(jobs)
            forward ^= len(jobs) > 1
    return ordered


def one_pool(federation: Federation, demand: FederationDemand, members: int) -> FederationDemand:
    """Return the same jobs on one pool per device type. Jobs may span sites, and data are everywhere.

    No network reaches this: it is the usual bound for pooling.
    """
    pools = [(number, group) for number, site in enumerate(federation.sites) for group in site.fleet.groups]
    types = list(dict.fromkeys(group.device for _, group in pools))
    of_type = np.array([types.index(group.device) for _, group in pools])
    mine = np.array([members >> number & 1 for number, _ in pools], bool)
    speed, believed = (
        np.stack([table[:, of_type == index].max(axis=1) for index in range(len(types))], axis=1)
        for table in (demand.speed, demand.believed)
    )
    capacity = np.bincount(of_type[mine], demand.capacity[mine], len(types)).astype(np.int64)
    shared = np.full(len(types), -1, np.int64)
    return replace(demand, speed=speed, believed=believed, delay_s=np.zeros_like(speed), capacity=capacity, pool_site=shared)


def rules_of(federation: Federation, *, by_credit: bool = False, home_first: bool = False) -> Rules:
    """Return the sites' limits with an order of service."""
    sites = federation.sites
    return Rules(
        lends=np.array([UNLIMITED if site.lends is None else site.lends for site in sites], np.int64),
        borrows=np.array([UNLIMITED if site.borrows is None else site.borrows for site in sites], np.int64),
        notice_s=np.array([site.notice_s for site in sites], float),
        by_credit=by_credit,
        home_first=home_first,
        checkpoint_s=federation.checkpoint_s,
        save_s=federation.save_s,
        restart_s=federation.restart_s,
    )


def _speeds_and_delays(
    federation: Federation, pools: Sequence[tuple[int, NodeGroup]], number: int, job: Job, size: float, speed: Speed | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the speed of one kind of job in every pool."""
    home = next(
        group.device
        for group in federation.sites[number].fleet.groups
        if group.devices >= job.devices and job.may_use(group.device)
    )
    wan = federation.wan_bytes_per_s
    away = size / wan if wan else 0.0
    speeds = []
    for _, group in pools:
        legal = job.may_use(group.device) and group.devices >= job.devices
        speeds.append(_ratio(federation, job, home, group.device, speed) if legal else 0.0)
    return tuple(speeds), tuple(0.0 if owner == number else away for owner, _ in pools)


def _ratio(federation: Federation, job: Job, home: str, device: str, speed: Speed | None) -> float:
    if device == home:
        return 1.0
    stated = federation.speeds.get(job.model, {})
    if home in stated and device in stated:
        return stated[device] / stated[home]
    return speed(job, home, device) if speed else 0.0
