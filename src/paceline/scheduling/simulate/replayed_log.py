"""Log whose jobs are simulated: its skipped rows, and the waits under the cluster's own scheduler beside those of a policy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.scheduling.job import Job
from paceline.scheduling.simulate.schedule import JobOutcome
from paceline.scheduling.traces.record import SkippedRow
from paceline.scheduling.traces.trace import Trace, place_key


@dataclass(frozen=True, kw_only=True)
class WaitFigures:
    """Waits from arrival to start of some jobs, in seconds; NaN without jobs. ``p90_s``: nine of ten jobs wait no longer."""

    jobs: int
    mean_s: float
    median_s: float
    p90_s: float

    @classmethod
    def of(cls, waits: Sequence[float]) -> WaitFigures:
        """Return the figures of waits in seconds."""
        if not waits:
            return cls(jobs=0, mean_s=math.nan, median_s=math.nan, p90_s=math.nan)
        values = np.array(waits)
        median, p90 = (float(value) for value in np.percentile(values, (50, 90)))
        return cls(jobs=len(waits), mean_s=float(values.mean()), median_s=median, p90_s=p90)


@dataclass(frozen=True, kw_only=True)
class ReplayedLog:
    """Log of a cluster whose jobs are simulated.

    Attributes:
        file, form: name of the file and of its form.
        rows: jobs and skipped rows.
        skipped: rows that became no job.
        waits: seconds from arrival to start in the log by job, where it states both.
    """

    file: str
    form: str
    rows: int
    skipped: tuple[SkippedRow, ...]
    waits: Mapping[str, float]

    @classmethod
    def of(cls, path: str | Path, trace: Trace, jobs: Iterable[Job]) -> ReplayedLog | None:
        """Return the log of a trace; None if it is no log. ``jobs``: those that are simulated; the others are too large."""
        if not trace.is_log:
            return None
        stay = {job.name for job in jobs}
        large = "asked for more devices than the cluster has of one type"
        named = list(zip(trace.jobs, trace.places, trace.waits, strict=True))
        dropped = [SkippedRow(place, job.name, large) for job, place, _ in named if job.name not in stay]
        waits = {job.name: wait for job, _, wait in named if job.name in stay and not math.isnan(wait)}
        return cls(
            file=Path(path).name,
            form=trace.form,
            rows=trace.rows,
            skipped=tuple(sorted((*trace.skipped, *dropped), key=place_key)),
            waits=waits,
        )

    @property
    def reasons(self) -> list[tuple[str, int]]:
        """Reasons of skipped rows with their numbers, the most frequent first."""
        return Counter(row.reason for row in self.skipped).most_common()

    def both_waits(self, outcomes: Iterable[JobOutcome]) -> tuple[WaitFigures, WaitFigures]:
        """Return the waits in the log and under a policy, of the jobs that have both."""
        started = {outcome.job.name: outcome.start_s - outcome.job.arrival_s for outcome in outcomes if outcome.spans}
        both = [name for name in self.waits if name in started]
        return WaitFigures.of([self.waits[name] for name in both]), WaitFigures.of([started[name] for name in both])

    def to_json(self, outcomes: Iterable[JobOutcome], with_rows: bool = False) -> dict[str, Any]:
        """Return the numbers of rows by reason, and the waits. ``with_rows``: also each skipped row."""
        logged, simulated = self.both_waits(outcomes)
        rows = {"skipped_rows": [asdict(row) for row in self.skipped]} if with_rows else {}
        return {
            "file": self.file,
            "form": self.form,
            "rows": self.rows,
            "jobs": self.rows - len(self.skipped),
            "skipped": [{"reason": reason, "rows": count} for reason, count in self.reasons],
            "waits": {"log": asdict(logged), "policy": asdict(simulated)},
            **rows,
        }
