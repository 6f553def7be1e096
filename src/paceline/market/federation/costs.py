"""Costs of a federation's jobs for each site: waiting, energy, the public cloud, and bytes between sites."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array, Ints
from paceline.market.federation.federation_state import CLOUD, FederationDemand, FederationOutcome, Rules
from paceline.market.federation.site import Federation

HOUR = 3600.0


@dataclass(frozen=True)
class Costs:
    """Costs by site in the federation's currency, before payments; each array has shape (sites,).

    Attributes:
        waiting: waiting costs of the owner's jobs: completion after arrival plus duration, at the price of an hour. Negative if
            faster devices of other sites end the jobs sooner.
        energy: energy costs of all jobs that ran on a site's devices.
        cloud: cloud costs of the owner's jobs. ``wan``: transfer costs of the data of the owner's jobs that ran elsewhere.
    """

    waiting: Array
    energy: Array
    cloud: Array
    wan: Array

    @property
    def total(self) -> Array:
        """Total cost of each site."""
        return self.waiting + self.energy + self.cloud + self.wan


def costs_of(federation: Federation, demand: FederationDemand, outcome: FederationOutcome) -> Costs:
    """Return the costs of all sites; 0 for non-members."""
    sites = federation.sites
    count = len(sites)
    late = np.nan_to_num(outcome.end_s - demand.arrival_s - demand.duration_s) / HOUR
    waiting = np.bincount(demand.site, late, count) * np.array([site.waiting_price for site in sites])
    job, pool = outcome.run_job, outcome.run_pool
    hours = (outcome.run_end_s - outcome.run_start_s) * demand.devices[job] / HOUR
    owner, in_cloud = demand.site[job], pool == CLOUD
    lender = np.where(in_cloud, -1, demand.pool_site[pool])
    place = np.where(lender >= 0, lender, owner)
    watts = _watts(federation, demand)
    kwh = np.where(in_cloud, 0.0, hours * watts[pool] / 1000)
    energy = np.bincount(place, kwh, count) * np.array([site.energy_price * site.pue for site in sites])
    cloud = np.bincount(owner, np.where(in_cloud, hours, 0.0), count) * np.array([site.cloud_price for site in sites])
    wan = np.bincount(owner, moved_bytes(demand, outcome) / 1e9, count).astype(float) * federation.wan_price
    return Costs(waiting, energy, cloud, wan)


def moved_bytes(demand: FederationDemand, outcome: FederationOutcome) -> Array:
    """Return bytes that runs move between sites, (runs,): a guest's data set, and a checkpoint if the job changes sites."""
    job, pool = outcome.run_job, outcome.run_pool
    place = np.where(pool == CLOUD, demand.site[job], demand.pool_site[pool])
    kind = demand.kind[job]
    guest = (place >= 0) & (place != demand.site[job])
    before, after = _successive(outcome)
    again = np.zeros(len(job), bool)
    again[after] = place[after] != place[before]
    return np.asarray(np.where(guest, demand.data_bytes[kind], 0.0) + np.where(again, demand.checkpoint_bytes[kind], 0.0))


def _successive(outcome: FederationOutcome) -> tuple[Ints, Ints]:
    """Return two lists of equal length: runs that are followed by another run of the same job, and those next runs."""
    order = np.argsort(outcome.run_job, kind="stable")  # runs are in the order of their starts
    same = outcome.run_job[order[:-1]] == outcome.run_job[order[1:]]
    return order[:-1][same], order[1:][same]


def kept_part(demand: FederationDemand, rules: Rules, outcome: FederationOutcome) -> Array:
    """Return the share of each run whose work was saved, shape (runs,): 1 for a completed run, less for an evicted one.

    A job saves during a notice that is long enough; after a shorter one it restarts from the last checkpoint.
    """
    job, inside = outcome.run_job, np.maximum(outcome.run_pool, 0)
    before, after = _successive(outcome)
    sent_away, again = np.zeros(len(job), bool), np.zeros(len(job), bool)
    sent_away[before], again[after] = True, True
    long = outcome.run_end_s - outcome.run_start_s
    done = np.maximum(long - demand.delay_s[demand.kind[job], inside] - np.where(again, rules.restart_s, 0.0), 0.0)
    saves = rules.notice_s[np.maximum(demand.pool_site[inside], 0)] >= rules.save_s
    kept = np.where(saves, np.maximum(done - rules.save_s, 0.0), done // rules.checkpoint_s * rules.checkpoint_s)
    return np.where(sent_away, np.divide(kept, long, out=np.zeros(len(long)), where=long > 0), 1.0)


def _watts(federation: Federation, demand: FederationDemand) -> Array:
    """Return the watts of a device of each pool under load; 0 if unknown. In a common pool the first owner's value counts."""
    groups = [group for site in federation.sites for group in site.fleet.groups]
    if len(groups) != len(demand.capacity):
        first = {group.device: group for group in reversed(groups)}
        groups = [first[device] for device in dict.fromkeys(group.device for group in groups)]
    return np.array([group.watts for group in groups], float)


def energy_prices(federation: Federation) -> Array:
    """Return the energy price of an hour of a busy device, for the owner of each pool; shape (pools,)."""
    return np.array(
        [group.watts / 1000 * site.energy_price * site.pue for site in federation.sites for group in site.fleet.groups],
        float,
    )


def mean_wait_s(demand: FederationDemand, outcome: FederationOutcome, site: int | None = None) -> float:
    """Return the mean seconds from arrival to first start of the jobs that ran; NaN if no job ran."""
    waited = outcome.first_start_s - demand.arrival_s
    mine = np.isfinite(waited) if site is None else np.isfinite(waited) & (demand.site == site)
    return float(waited[mine].mean()) if mine.any() else float("nan")
