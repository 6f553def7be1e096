"""Event simulation of a federation's jobs: each job starts in the pool where it ends first, or waits."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from paceline.array_types import Array, Ints
from paceline.market.federation import reference_simulation
from paceline.market.federation.federation_state import FederationDemand, FederationOutcome, Rules

try:
    from paceline import _native
except ImportError:  # a source tree without a build
    _native = None  # type: ignore[assignment]


class FederationSimulation(Protocol):
    """A simulation that advances step by step."""

    def run_until(self, moment: float) -> bool:
        """Process all events before a moment. Return whether no event is left."""
        ...

    def limit(self, now: float, lends: Ints, borrows: Ints) -> None:
        """Change the sites' limits from now on, shape (sites,), and start the jobs that then fit."""
        ...

    def start(self, now: float, job: int, pool: int) -> int:
        """Start a waiting job in a pool with room, regardless of limits. Return the number of its run. Raises ValueError."""
        ...

    def waiting(self) -> Ints:
        """Return the numbers of the waiting jobs."""
        ...

    def remaining(self) -> Array:
        """Return the work in seconds at home that each job had left when it last started or stopped; shape (jobs,)."""
        ...

    def restarted(self) -> Ints:
        """Return how often each job was evicted; shape (jobs,)."""
        ...

    def running(self) -> tuple[Ints, Ints, Array]:
        """Return pool, devices and believed end in seconds of the current runs, in order of their jobs."""
        ...

    def free(self) -> Ints:
        """Return the free devices of each pool."""
        ...

    def lent(self) -> Ints:
        """Return the devices that each site lends."""
        ...

    def borrowed(self) -> Ints:
        """Return the devices that each site borrows."""
        ...

    def outcome(self) -> FederationOutcome:
        """Return the outcome so far."""
        ...


class _Native:
    """The simulation of ``csrc/federation.cpp``."""

    def __init__(self, demand: FederationDemand, rules: Rules, members: int) -> None:
        jobs = len(demand.arrival_s)
        self._ends = np.empty(jobs), np.empty(jobs)
        self._restarts = np.empty(jobs, np.int64)
        self._run = _native.Federation(
            demand.arrival_s,
            demand.duration_s,
            demand.devices,
            demand.site,
            demand.kind,
            demand.patience_s,
            demand.kind_site,
            demand.speed,
            demand.believed,
            demand.delay_s,
            demand.cloud_speed,
            demand.capacity,
            demand.pool_site,
            rules.lends,
            rules.borrows,
            rules.notice_s,
            rules.by_credit,
            rules.home_first,
            rules.checkpoint_s,
            rules.save_s,
            rules.restart_s,
            members,
            *self._ends,
            self._restarts,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def restarted(self) -> Ints:
        return self._restarts.copy()

    def outcome(self) -> FederationOutcome:
        return FederationOutcome(*self._ends, self._restarts, *self._run.runs())


def begin(demand: FederationDemand, rules: Rules, members: int, native: bool | None = None) -> FederationSimulation:
    """Set up the simulation of a coalition's jobs on its devices.

    Jobs are served first come first served with greedy backfill: a job that does not fit does not block others. ``rules`` set
    the order of service, the limits of lending and the evictions.

    Args:
        members: the coalition's mask. Other sites' jobs and devices are left out.
        native: C++ (True) or Python (False), with equal results; None: C++ if it was built.
    """
    if native is None:
        native = _native is not None
    return _Native(demand, rules, members) if native else reference_simulation.ReferenceSimulation(demand, rules, members)


def simulate(demand: FederationDemand, rules: Rules, members: int, native: bool | None = None) -> FederationOutcome:
    """Simulate the jobs of a coalition to their end. Arguments as of ``begin``."""
    simulation = begin(demand, rules, members, native)
    simulation.run_until(math.inf)
    return simulation.outcome()
