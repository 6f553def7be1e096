"""A federation's jobs on its devices, event by event: each job starts where it ends first, and what does not fit waits."""

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
    """A simulation that goes on step by step."""

    def run_until(self, moment: float) -> bool:
        """All that happens before a moment; whether nothing more will."""
        ...

    def limit(self, now: float, lends: Ints, borrows: Ints) -> None:
        """Other limits of the sites from now on, shape (sites,), and what starts by them."""
        ...

    def start(self, now: float, job: int, pool: int) -> int:
        """Start a job that waits in a pool that has room, whatever the limits are; its run's number. Raises ValueError."""
        ...

    def waiting(self) -> Ints:
        """Jobs that wait, by their numbers."""
        ...

    def remaining(self) -> Array:
        """Seconds of work at home that each job had left when it last started or stopped; shape (jobs,)."""
        ...

    def restarted(self) -> Ints:
        """How often each job was sent away; shape (jobs,)."""
        ...

    def running(self) -> tuple[Ints, Ints, Array]:
        """Runs that have not ended, by their jobs: pool, devices, end as believed in seconds."""
        ...

    def free(self) -> Ints:
        """Devices of each pool that nobody holds."""
        ...

    def lent(self) -> Ints:
        """Devices that each site lends."""
        ...

    def borrowed(self) -> Ints:
        """Devices that each site borrows."""
        ...

    def outcome(self) -> FederationOutcome:
        """What became of the jobs so far."""
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
    """The jobs of a coalition on its devices, before anything happens.

    Jobs are served first come first served with greedy backfill: one that does not fit holds up nobody. ``rules`` say who is
    served first, what may be lent, and who has to leave.

    Args:
        members: the coalition's mask. Other sites' jobs do not run, and their devices are away.
        native: C++ (True) or Python (False), which give the same; None: C++ where it was built.
    """
    if native is None:
        native = _native is not None
    return _Native(demand, rules, members) if native else reference_simulation.ReferenceSimulation(demand, rules, members)


def simulate(demand: FederationDemand, rules: Rules, members: int, native: bool | None = None) -> FederationOutcome:
    """Run the jobs of a coalition to their end, as ``begin`` has them."""
    simulation = begin(demand, rules, members, native)
    simulation.run_until(math.inf)
    return simulation.outcome()


__all__ = ["FederationSimulation", "begin", "simulate"]
