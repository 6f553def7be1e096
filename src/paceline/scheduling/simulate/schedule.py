"""What became of the jobs of a cluster: the stretches in which each ran, and on what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.placement import Placement


@dataclass(slots=True)
class Span:
    """A stretch on the same devices; ``batch`` is the one it began with, ``strategy`` in words (empty: unknown)."""

    start_s: float
    end_s: float
    device: str
    placement: Placement
    batch: int = 0
    reason: str = ""
    strategy: str = ""


@dataclass(slots=True)
class JobOutcome:
    """What became of a job.

    Attributes:
        end_s: NaN where it never ended.
        removed: why a policy turned it away or stopped it for good, and ``removed_s`` when; empty: it did not.
    """

    job: Job
    end_s: float = math.nan
    restarts: int = 0
    spans: list[Span] = field(default_factory=list)
    removed: str = ""
    removed_s: float | None = None

    @property
    def jct_s(self) -> float:
        """From arrival to end."""
        return self.end_s - self.job.arrival_s

    @property
    def met(self) -> bool:
        """Whether it ended by its deadline."""
        return self.end_s <= self.job.deadline_s

    @property
    def start_s(self) -> float:
        """When it first held devices; NaN: never."""
        return self.spans[0].start_s if self.spans else math.nan

    @property
    def device_s(self) -> float:
        """Device-seconds that it held."""
        return sum((span.end_s - span.start_s) * sum(count for _, count in span.placement) for span in self.spans)


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """How the simulated cluster behaves.

    Attributes:
        round_s: between decisions; 0: at every arrival, end and outage, and when the policy asks.
        restart_s: a start or resize costs a job so long, in which it holds its devices; ``restart_by_model``: other times.
        believed_restart: what policies are told instead, by model.
        moves_free: whether a job that moves to other nodes in the same shape goes on without a restart.
        interference: share of speed that jobs on several nodes lose where two of them share a node.
        checkpoint_s: a failed node costs the work since the last checkpoint, which jobs write so often.
        longest_s: the simulation ends then, whatever is left.
    """

    round_s: float = 60.0
    restart_s: float = 30.0
    restart_by_model: Mapping[str, float] = field(default_factory=dict)
    believed_restart: Mapping[str, float] = field(default_factory=dict)
    moves_free: bool = False
    interference: float = 0.0
    checkpoint_s: float = 600.0
    longest_s: float = 1e9


@dataclass(frozen=True, kw_only=True)
class ClusterSchedule:
    """A whole run of the cluster.

    Attributes:
        outcomes: in the order of the trace.
        decision_s: seconds of this machine for each decision that the policy was asked for; empty: they were not measured.
        active: (moment, jobs in the system) at each decision. ``notes``: (moment, what the policy said of it).
        until_s: of a live schedule that goes on, the moment up to which it is told; None: it is over.
    """

    fleet: Fleet
    outcomes: tuple[JobOutcome, ...]
    decision_s: tuple[float, ...]
    active: tuple[tuple[float, int], ...]
    notes: tuple[tuple[float, str], ...] = ()
    until_s: float | None = None


__all__ = ["ClusterSchedule", "ClusterSettings", "JobOutcome", "Span"]
