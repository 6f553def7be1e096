"""Result of ``paceline.schedule``: a simulated schedule with its policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paceline.errors import unknown
from paceline.scheduling.job import Choice
from paceline.scheduling.simulate.metrics import BOUND_S, ScheduleMetrics, metrics
from paceline.scheduling.simulate.replayed_log import ReplayedLog
from paceline.scheduling.simulate.schedule import ClusterSchedule, ClusterSettings, JobOutcome
from paceline.tabular import Row, Tabular


@dataclass(frozen=True, kw_only=True)
class SimulatedSchedule(Tabular):
    """Outcome of all jobs under one policy.

    Attributes:
        adapts: properties that the policy chooses for jobs whose owners allow it.
        knowledge: knowledge of the policy.
        ratios: finish-time fairness of each job that ended, from a simulation of it alone; None: it is estimated.
        notes: remarks, a sentence each.
        log: log of a cluster whose jobs are simulated; None: they come from elsewhere.
    """

    policy: str
    schedule: ClusterSchedule
    settings: ClusterSettings
    adapts: frozenset[Choice] = frozenset()
    knowledge: str = "online"
    ratios: Mapping[str, float] | None = None
    notes: tuple[str, ...] = ()
    log: ReplayedLog | None = None

    @cached_property
    def metrics(self) -> ScheduleMetrics:
        """Figures of the schedule."""
        return metrics(self.schedule, self.ratios, self.negligible_s)

    @property
    def negligible_s(self) -> float:
        """Longest delay that is not unfair: a round and a start."""
        return max(self.settings.round_s + max(self.settings.restart_s, *self.settings.restart_by_model.values(), 0.0), BOUND_S)

    def rows(self) -> Sequence[Row]:
        """Return a row per job, in the order of the trace."""
        return [job_row(outcome) for outcome in self.schedule.outcomes]

    def outcome(self, name: str) -> JobOutcome:
        """Return the outcome of a job. Raises UserError with the nearest names."""
        for outcome in self.schedule.outcomes:
            if outcome.job.name == name:
                return outcome
        raise unknown("job", name, [outcome.job.name for outcome in self.schedule.outcomes])

    def to_json(self, with_skipped: bool = False) -> dict[str, Any]:
        """Return policy, figures, notes, and a row per job. ``with_skipped``: also each skipped row of a log."""
        rows = [dict(row) for row in self.rows()]
        logged = self.log
        if logged is not None:
            for row in rows:
                row["log_wait_s"] = logged.waits.get(str(row["name"]), math.nan)
        return {
            "policy": self.policy,
            "knowledge": self.knowledge,
            "fairness": "estimate" if self.ratios is None else "alone",
            "metrics": self.metrics.to_json(),
            "notes": list(self.notes),
            **({} if logged is None else {"log": logged.to_json(self.schedule.outcomes, with_skipped)}),
            "jobs": rows,
        }


def job_row(outcome: JobOutcome) -> Row:
    """Return the outcome of a job as a row, with seconds after the start of the trace; NaN for what never happened.

    ``strategy``: strategies it ran with, in words; empty: unknown.
    """
    job = outcome.job
    strategies = dict.fromkeys(span.strategy for span in outcome.spans if span.strategy)
    return {
        "name": job.name,
        "model": job.model,
        "devices": job.devices,
        "arrival_s": job.arrival_s,
        "start_s": outcome.start_s,
        "end_s": outcome.end_s,
        "jct_s": outcome.jct_s,
        "device_hours": outcome.device_s / 3600,
        "restarts": outcome.restarts,
        "strategy": ", then ".join(strategies),
        "ended": not math.isnan(outcome.end_s),
        "removed": outcome.removed,
        "removed_s": math.nan if outcome.removed_s is None else outcome.removed_s,
    }
