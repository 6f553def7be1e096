"""What a simulation of a federation takes and gives, as arrays: jobs, places, rules, and what became of the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array, Ints

CLOUD = -1
"""The pool of a run in the public cloud."""


@dataclass(frozen=True)
class FederationDemand:
    """Jobs and the pools that they may run in. Equal jobs are of one kind: the same site, devices, speeds and delays.

    Attributes:
        arrival_s: of each job, ascending; shape (jobs,).
        duration_s: of its work at speed 1, which is that at home.
        devices: that it holds as long as it runs. ``site``: its owner. ``kind``: its kind.
        patience_s: a job that has waited so long for its first start goes to the public cloud; infinite: never.
        kind_site: the site of each kind; shape (kinds,).
        speed: of a kind in a pool, beside that at home; 0: it cannot run there. Shape (kinds, pools).
        believed: the speeds by which a pool is chosen; above 0 where ``speed`` is.
        delay_s: before a kind's work begins in a pool, with devices held: its data arrive. Shape (kinds, pools).
        cloud_speed: of a kind in the public cloud; shape (kinds,). ``data_bytes``: that move where such a job runs
            elsewhere; ``checkpoint_bytes``: where it starts again at another site.
        capacity: devices of each pool; shape (pools,). ``pool_site``: the site that owns it; -1: everyone.
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
    """How sites share. Arrays have one entry a site.

    Attributes:
        lends, borrows: devices that a site lends, or borrows, at a time at most.
        notice_s: seconds from an owner's word until its guests leave; infinite: they stay to their end.
        by_credit: the site that has lent most is served first (device-seconds lent less borrowed), else whose job came first.
        home_first: own jobs take their site's devices before guests do.
        checkpoint_s: of a job's work between two checkpoints. ``save_s``: to write one. ``restart_s``: to start again.
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
    """What became of the jobs. Jobs of sites that are no members have NaN.

    Attributes:
        first_start_s, end_s: of each job; shape (jobs,). ``restarts``: how often it was sent away.
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
        """Of lists; a run is its job, its pool, its start and its end."""
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
    """The site on whose devices each run is a guest, shape (runs,); -1: at home, in the cloud, on devices of nobody."""
    owner = np.where(outcome.run_pool == CLOUD, -1, demand.pool_site[outcome.run_pool])
    return np.where(owner == demand.site[outcome.run_job], -1, owner)


__all__ = ["CLOUD", "FederationDemand", "FederationOutcome", "Rules", "lenders"]
