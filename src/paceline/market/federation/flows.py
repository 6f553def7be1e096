"""Device-hours lent between sites over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array
from paceline.market.federation.federation_state import CLOUD, FederationDemand, FederationOutcome, lenders

PERIODS = 240


@dataclass(frozen=True)
class LendingFlows:
    """Device-hours of work that sites ran for each other.

    Attributes:
        hours: device-hours by lender (row) and borrower (column), shape (sites, sites); the diagonal is work at home.
        cloud_hours: device-hours of each site's jobs in the public cloud, shape (sites,).
        edges_s: edges of the periods, shape (periods + 1,). ``lent``: devices lent by each site, means of the periods, shape
            (sites, periods).
    """

    hours: Array
    cloud_hours: Array
    edges_s: Array
    lent: Array


def flows_of(demand: FederationDemand, outcome: FederationOutcome, sites: int, periods: int = PERIODS) -> LendingFlows:
    """Return the flows of an outcome. Devices of a common pool count as the borrower's."""
    pool, devices = outcome.run_pool, demand.devices[outcome.run_job]
    home, in_cloud = demand.site[outcome.run_job], pool == CLOUD
    owner = np.where(in_cloud, -1, demand.pool_site[pool])
    lender = np.where(owner < 0, home, owner)
    hours = (outcome.run_end_s - outcome.run_start_s) * devices / 3600
    matrix = np.bincount(lender * sites + home, np.where(in_cloud, 0.0, hours), sites * sites)
    edges = np.linspace(0.0, max(float(outcome.run_end_s.max(initial=0.0)), 1.0), periods + 1)
    lent = np.zeros((sites, periods))
    for site in range(sites):
        mine = (lender == site) & (home != site) & ~in_cloud
        passed = np.zeros(periods + 1)
        for moments, sign in ((outcome.run_start_s[mine], 1.0), (outcome.run_end_s[mine], -1.0)):
            order = np.argsort(moments)
            counts = np.concatenate([[0.0], devices[mine][order].cumsum()])
            weighted = np.concatenate([[0.0], (devices[mine] * moments)[order].cumsum()])
            place = np.searchsorted(moments[order], edges, "right")
            passed += sign * (counts[place] * edges - weighted[place])
        lent[site] = np.diff(passed) / np.diff(edges)
    return LendingFlows(
        matrix.astype(float).reshape(sites, sites),
        np.bincount(home, np.where(in_cloud, hours, 0.0), sites).astype(float),
        edges,
        lent,
    )


def lending(demand: FederationDemand, outcome: FederationOutcome, site: int) -> tuple[float, float, int]:
    """Return device-hours that a site lends and borrows, and the most devices that it lends at a time."""
    lender, home, devices = lenders(demand, outcome), demand.site[outcome.run_job], demand.devices[outcome.run_job]
    hours = (outcome.run_end_s - outcome.run_start_s) * devices / 3600
    lent = lender == site
    moments = np.concatenate([outcome.run_start_s[lent], outcome.run_end_s[lent]])
    changes = np.concatenate([devices[lent], -devices[lent]])
    order = np.lexsort((changes, moments))  # devices return before they are lent again
    most = int(changes[order].cumsum().max(initial=0))
    return float(hours[lent].sum()), float(hours[(lender >= 0) & (home == site)].sum()), most
