"""Schedule of a cluster: the periods in which each job ran, and its devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.placement import Placement


@dataclass(slots=True)
class Span:
    """Period of a job on the same devices. ``batch``: batch at its start.

    ``strategy``: strategy in words; empty: unknown.
    """

    start_s: float
    end_s: float
    device: str
    placement: Placement
    batch: int = 0
    reason: str = ""
    strategy: str = ""


@dataclass(slots=True)
class JobOutcome:
    """Outcome of a job.

    Attributes:
        end_s: end; NaN if it never ended.
        restarts: restarts and resizes.
        held_back: (time, reason) where the policy said why the job waits, when the reason up to its colon changed.
        removed: reason why a policy turned it away or stopped it for good; empty: it did not. ``removed_s``: when.
        preempted: (time, job) when it was told to leave its devices to another job.
    """

    job: Job
    end_s: float = math.nan
    restarts: int = 0
    spans: list[Span] = field(default_factory=list)
    held_back: list[tuple[float, str]] = field(default_factory=list)
    removed: str = ""
    removed_s: float | None = None
    preempted: list[tuple[float, str]] = field(default_factory=list)

    @property
    def jct_s(self) -> float:
        """Completion time, from arrival to end."""
        return self.end_s - self.job.arrival_s

    @property
    def met(self) -> bool:
        """True if the job ended by its deadline."""
        return self.end_s <= self.job.deadline_s

    @property
    def start_s(self) -> float:
        """Time of the first device; NaN if the job never had one."""
        return self.spans[0].start_s if self.spans else math.nan

    @property
    def device_s(self) -> float:
        """Device-seconds that the job held; fractions of a device count as such."""
        held_s = sum((span.end_s - span.start_s) * sum(count for _, count in span.placement) for span in self.spans)
        return held_s * self.job.share


@dataclass(frozen=True, slots=True)
class RunningJob:
    """Job that runs when a simulation starts. ``placement``: its devices by node. ``ran_s``: seconds since its start."""

    placement: Placement
    ran_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Behaviour of the simulated cluster.

    Attributes:
        round_s: seconds between decisions; 0: decide at every arrival, end and outage, and when the policy asks.
        restart_s: seconds of a start or resize, in which the job holds its devices. ``restart_by_model``: other times by model.
        believed_restart: restart times that policies see instead, by model.
        moves_free: True if a job moves to other nodes of the same shape without a restart.
        interference: share of speed that jobs on several nodes lose if two of them share a node.
        checkpoint_s: seconds between checkpoints. A failed node costs the work since the last one.
        longest_s: time at which the simulation ends in any case.
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
    """Complete run of a cluster.

    Attributes:
        outcomes: outcomes in the order of the trace.
        decision_s: seconds of this machine for each decision of the policy; empty: not measured.
        active: (time, present jobs) at each decision. ``notes``: (time, remark of the policy).
        until_s: present time of a live schedule that is still running; None: it is over.
    """

    fleet: Fleet
    outcomes: tuple[JobOutcome, ...]
    decision_s: tuple[float, ...]
    active: tuple[tuple[float, int], ...]
    notes: tuple[tuple[float, str], ...] = ()
    until_s: float | None = None
