"""Jobs of a file, ready for a simulation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from paceline.csv_rows import Row
from paceline.errors import LARGEST_COUNT, UserError, shorten
from paceline.scheduling.job import LONGEST_S, Job
from paceline.scheduling.traces.record import JobLog, LoggedJob, SkippedRow, numbered, singular

_COMPLETED = frozenset({"", "completed", "complete", "pass", "succeeded", "finished", "jobfinished", "running", "unknown"})
"""States of jobs that ran to their end, and those that say nothing about it."""
_LEAST_SHARE = 1e-6


@dataclass(frozen=True)
class Trace:
    """Jobs of a file.

    Attributes:
        jobs: jobs in the order of the file. ``places``: file and row of each.
        notes: sentences on jobs that were left out or counted differently.
        waits: seconds that each job waited in the log; NaN: the log does not say. Empty: the file is no log.
        skipped: rows that became no job.
        rows: jobs and skipped rows together.
        form: name of the form of the file.
    """

    jobs: tuple[Job, ...]
    places: tuple[str, ...]
    notes: tuple[str, ...] = ()
    waits: tuple[float, ...] = ()
    skipped: tuple[SkippedRow, ...] = ()
    form: str = ""

    @classmethod
    def of_rows(cls, rows: Sequence[Row], make: Callable[[Row], Job]) -> Trace:
        """Build a trace with a job per row. Raises UserError naming the row."""
        return cls(tuple(job_of_row(row, lambda row=row: make(row)) for row in rows), tuple(row.place for row in rows))  # type: ignore[misc]

    @property
    def rows(self) -> int:
        """Jobs and skipped rows together."""
        return len(self.jobs) + len(self.skipped)

    @property
    def is_log(self) -> bool:
        """True for the log of a cluster, where a row that cannot be used is skipped."""
        return bool(self.waits)


def job_of_row(row: Row, make: Callable[[], Job]) -> Job:
    """Return ``make()``, and add the row to its errors."""
    try:
        return make()
    except UserError as error:
        if error.message.startswith(row.file):
            raise
        raise UserError(f"{row.place}: {error.message}", error.fix) from None


def trace_of_log(log: JobLog, command: str = "") -> Trace:
    """Return the jobs of a log that ran on devices, each as long as it ran.

    Args:
        command: command that writes a file of this form, for the error.

    Raises:
        UserError: no job ran on devices. A queue, in which no job has ended, names ``schedule start``.
    """
    ran: list[LoggedJob] = []
    skipped = list(log.skipped)
    for logged in log.jobs:
        reason = _unused(logged)
        if reason:
            skipped.append(SkippedRow(logged.place, logged.name, reason))
        else:
            ran.append(logged)
    if not ran:
        raise _nothing(log, skipped, command)
    first = min(logged.arrival_s for logged in ran)
    jobs, kept = [], []
    for logged in numbered(ran):
        try:
            jobs.append(_job(logged, first))
            kept.append(logged)
        except UserError as error:
            skipped.append(SkippedRow(logged.place, logged.name, "had wrong values", error.message[:120]))
    notes = (*_left_out(skipped, len(jobs) + len(skipped)), *_remarks(ran), *log.notes)
    return Trace(
        jobs=tuple(jobs),
        places=tuple(logged.place for logged in kept),
        notes=notes,
        waits=tuple(logged.wait_s if logged.wait_s >= 0 else math.nan for logged in kept),
        skipped=tuple(sorted(skipped, key=place_key)),
        form=log.form,
    )


def _unused(job: LoggedJob) -> str:
    """Return why a job cannot be simulated; empty if it can."""
    if job.state == "running":
        return "had not ended"
    if job.state == "waiting" or (math.isnan(job.start_s) and not job.run_s > 0):
        return "never started"
    if math.isnan(job.arrival_s):
        return "had no time of submission"
    if job.start_s < job.submit_s:
        return "started before their submission"
    if math.isnan(job.run_s):
        return "had no end"
    if job.run_s < 0:
        return "ended before their start"
    if job.run_s == 0:
        return "ran for 0 s"
    if job.run_s > LONGEST_S or abs(job.arrival_s) > 1e12:
        return "had an impossible time"
    if job.devices == 0:
        return "held no GPU"
    if job.devices > LARGEST_COUNT:
        return "had an impossible number of devices"
    return ""


def _job(logged: LoggedJob, first_s: float) -> Job:
    devices, share, types = logged.devices, max(logged.share, _LEAST_SHARE), logged.device_types
    if logged.profile:
        share, types = 1.0, (f"{types[0] if types else ''} {logged.profile}".strip(),)
    if share < 1 and devices > 1:
        whole = max(1, math.ceil(devices * share - 1e-9))
        share = min(devices * share, 1.0) if whole == 1 else 1.0
        devices = whole
    return Job(
        name=logged.name,
        arrival_s=logged.arrival_s - first_s,
        duration_s=logged.run_s,
        devices=devices,
        share=share,
        device_types=types,
        limit_s=max(logged.limit_s, logged.run_s) if logged.limit_s else 0.0,
        priority=int(max(-LARGEST_COUNT, min(LARGEST_COUNT, logged.priority))),
        preemptible=logged.preemptible,
        topology=logged.topology,
        owner=logged.user,
        virtual_cluster=logged.account or logged.queue,
        queue=logged.queue.split(",")[0],
        qos=logged.qos,
        resources=logged.resources,
    )


def _nothing(log: JobLog, skipped: Sequence[SkippedRow], command: str) -> UserError:
    """Return the error for a log without a job that ran."""
    running, waiting, ended = (len(log.in_state(state)) for state in ("running", "waiting", "ended"))
    if running + waiting > len(log.skipped) and not ended:
        parts = [f"{count:,} {word}" for count, word in ((running, "running"), (waiting, "waiting")) if count]
        jobs = "job" if (waiting or running) == 1 else "jobs"
        return UserError(
            f"{log.file} is a queue with {' and '.join(parts)} {jobs}, in which no job has ended",
            f"paceline schedule start {log.file} says when they start",
        )
    counts = Counter(row.reason for row in skipped)
    reasons = "; ".join(f"{count} {singular(reason) if count == 1 else reason}" for reason, count in counts.items())
    wrong = next((f"; {row.place}: {row.detail}" for row in skipped if row.detail), "")
    return UserError(
        f"no job of {log.file} ran on devices ({reasons or 'it has no jobs'}{wrong})",
        f"write it with {command}" if command else "",
    )


def _left_out(skipped: Sequence[SkippedRow], rows: int) -> Iterator[str]:
    """Yield a sentence for each reason of skipped rows."""
    for reason, count in Counter(row.reason for row in skipped).items():
        yield f"{count:,} of {rows:,} jobs left out: they {reason}."


def _remarks(ran: Sequence[LoggedJob]) -> Iterator[str]:
    """Yield a sentence for each remark on jobs that are simulated."""
    total = len(ran)
    for note, count in Counter(note for job in ran for note in job.notes).items():
        yield f"{count:,} of {total:,} jobs {note}."
    if slices := Counter(job.profile for job in ran if job.profile and job.share < 1):
        kinds = ", ".join(f"{count:,} of {profile}" for profile, count in slices.most_common(5))
        yield f"{sum(slices.values()):,} of {total:,} jobs ran on MIG slices ({kinds})."
    if again := total - len({job.name for job in ran}):
        yield f"{again:,} of {total:,} jobs were run again; each run counts as a job."
    if parts := sum("+" in job.name for job in ran):
        yield f"{parts:,} of {total:,} jobs were components of heterogeneous jobs; each counts as a job."
    if held := sum(job.eligible_s > job.submit_s for job in ran):
        yield f"{held:,} of {total:,} jobs became eligible after their submission, and arrive then."
    states = Counter(job.status for job in ran if job.status.casefold() not in _COMPLETED)
    if states:
        kinds = ", ".join(f"{count:,} {shorten(state, 30)}" for state, count in states.most_common())
        failed = f"{sum(states.values()):,} of {total:,} jobs did not complete"
        yield f"{failed} ({kinds}); each counts with the time that it ran."


def place_key(row: SkippedRow) -> tuple[str, int]:
    """Return a key that sorts rows by file and number."""
    head, _, tail = row.place.rpartition(", ")
    digits = "".join(character if character.isdigit() else " " for character in tail).split()
    return head, int(digits[0]) if digits else 0
