"""Input and output of a federation's simulation as arrays: jobs, pools, rules and outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array, Ints

CLOUD = -1
"""Pool number of a run in the public cloud."""


@dataclass(frozen=True)
class FederationDemand:
    """Jobs and the pools where they may run. Jobs of one kind have the same site, devices, speeds and delays.

    Attributes:
        arrival_s: arrival of each job, ascending; shape (jobs,).
        duration_s: duration of its work at speed 1, the speed at home.
        devices: number held while it runs. ``site``: its owner. ``kind``: its kind.
        patience_s: wait for the first start after which a job goes to the public cloud; infinite: never.
        kind_site: the site of each kind; shape (kinds,).
        speed: speed of a kind in a pool, relative to home; 0: it cannot run there. Shape (kinds, pools).
        believed: the speeds that the choice of a pool uses; above 0 if ``speed`` is.
        delay_s: until a kind's data arrive in a pool, while its devices are held. Shape (kinds, pools).
        cloud_speed: speed of a kind in the public cloud; shape (kinds,). ``data_bytes``: moved when such a job runs at another
            site; ``checkpoint_bytes``: moved when it restarts at another site.
        capacity: devices of each pool; shape (pools,). ``pool_site``: its owner; -1: all sites.
    """

    arrival_s: Array
    duration_s: Array
    devices: Ints
    site: Ints
    kind: Ints
    patience_s: Array
    kind_site: Ints
    speed: Array
    believed: Array
    delay_s: Array
    cloud_speed: Array
    data_bytes: Array
    checkpoint_bytes: Array
    capacity: Ints
    pool_site: Ints


@dataclass(frozen=True)
class Rules:
    """Rules of sharing. Arrays have one entry per site.

    Attributes:
        lends, borrows: most devices that a site lends or borrows at a time.
        notice_s: seconds from an owner's notice until its guests leave; infinite: guests run to their end.
        by_credit: serve the site with the most device-seconds lent less borrowed first, not the earliest job.
        home_first: a site's jobs take its devices before guests do.
        checkpoint_s: seconds of a job's work between two checkpoints. ``save_s``: to write one. ``restart_s``: to start again.
    """

    lends: Ints
    borrows: Ints
    notice_s: Array
    by_credit: bool = False
    home_first: bool = False
    checkpoint_s: float = 1800.0
    save_s: float = 30.0
    restart_s: float = 60.0


@dataclass(frozen=True)
class FederationOutcome:
    """Outcome of each job. Jobs of non-members have NaN.

    Attributes:
        first_start_s, end_s: first start and end of each job; shape (jobs,). ``restarts``: number of evictions.
        run_job, run_pool, run_start_s, run_end_s: its runs, in the order of their starts; pool ``CLOUD`` is the public cloud.
    """

    first_start_s: Array
    end_s: Array
    restarts: Ints
    run_job: Ints
    run_pool: Ints
    run_start_s: Array
    run_end_s: Array

    @classmethod
    def of_lists(
        cls,
        first_start: Sequence[float],
        end: Sequence[float],
        restarts: Sequence[int],
        runs: Sequence[tuple[int, int, float, float]],
    ) -> FederationOutcome:
        """Convert lists. A run is its job, its pool, its start and its end."""
        columns = list(zip(*runs, strict=True)) if runs else [(), (), (), ()]
        return cls(
            np.array(first_start, float),
            np.array(end, float),
            np.array(restarts, np.int64),
            np.array(columns[0], np.int64),
            np.array(columns[1], np.int64),
            np.array(columns[2], float),
            np.array(columns[3], float),
        )


def lenders(demand: FederationDemand, outcome: FederationOutcome) -> Ints:
    """Return the lender of each guest run, shape (runs,); -1 at home, in the cloud and in a common pool."""
    owner = np.where(outcome.run_pool == CLOUD, -1, demand.pool_site[outcome.run_pool])
    return np.where(owner == demand.site[outcome.run_job], -1, owner)
