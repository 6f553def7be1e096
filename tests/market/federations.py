"""Random federations for tests."""

from __future__ import annotations

import numpy as np

from paceline.market.federation.federation_state import FederationDemand, Rules


def random_demand(
    rng: np.random.Generator,
    sites: int = 3,
    jobs: int = 60,
    types: int = 2,
    shared: bool = False,
    wrong: bool = False,
    impatient: bool = False,
) -> FederationDemand:
    """Jobs that come in bursts, on pools of several device types. Times are eighths of a second: sums of them are exact.

    Args:
        shared: nobody owns the pools. ``wrong``: what is believed of speeds. ``impatient``: some go to the cloud.
    """
    pools = sites * types
    pool_site = np.full(pools, -1) if shared else np.repeat(np.arange(sites), types)
    capacity = rng.integers(0, 9, pools)
    kind_site = np.repeat(np.arange(sites), 4)
    kind_devices = rng.integers(1, 9, len(kind_site))
    speed = rng.choice([0.0, 0.5, 1.0, 2.0], (len(kind_site), pools))
    for kind, site in enumerate(kind_site):  # each job fits at home
        home = int(np.flatnonzero((pool_site == site) | (pool_site < 0))[0])
        speed[kind, home] = 1.0
        capacity[home] = max(capacity[home], kind_devices[kind])
    kind = rng.integers(0, len(kind_site), jobs)
    return FederationDemand(
        arrival_s=np.sort(rng.integers(0, 400, jobs)) / 8.0,
        duration_s=rng.integers(1, 400, jobs) / 8.0,
        devices=kind_devices[kind].astype(np.int64),
        site=kind_site[kind].astype(np.int64),
        kind=kind.astype(np.int64),
        patience_s=rng.choice([0.0, 20.0, np.inf], sites, p=[0.1, 0.2, 0.7])[kind_site[kind]]
        if impatient
        else np.full(jobs, np.inf),
        kind_site=kind_site.astype(np.int64),
        speed=speed,
        believed=speed * rng.choice([0.25, 1.0, 3.0], speed.shape) if wrong else speed,
        delay_s=np.where(pool_site[None] == kind_site[:, None], 0.0, rng.integers(0, 16, speed.shape) / 8.0),
        cloud_speed=np.ones(len(kind_site)),
        data_bytes=np.zeros(len(kind_site)),
        checkpoint_bytes=np.zeros(len(kind_site)),
        capacity=capacity.astype(np.int64),
        pool_site=pool_site.astype(np.int64),
    )


def random_rules(rng: np.random.Generator, sites: int = 3) -> Rules:
    """Any rules."""
    return Rules(
        lends=rng.integers(0, 17, sites),
        borrows=rng.integers(0, 17, sites),
        notice_s=rng.choice([0.0, 1.0, 4.0, np.inf], sites),
        by_credit=bool(rng.integers(2)),
        home_first=bool(rng.integers(2)),
        checkpoint_s=5.0,
        save_s=2.0,
        restart_s=1.0,
    )


def free_rules(sites: int, **changes: object) -> Rules:
    """Everything is shared for good."""
    most, never = np.full(sites, 1 << 30), np.full(sites, np.inf)
    return Rules(**{"lends": most, "borrows": most, "notice_s": never, **changes})  # type: ignore[arg-type]
