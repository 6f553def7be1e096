"""Queue of a cluster at one moment: its running and waiting jobs, from a file or from the text that a program printed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from paceline.scheduling.traces.content import JobFile
from paceline.scheduling.traces.logs.slurm_json import number_of
from paceline.scheduling.traces.reader import parse_log
from paceline.scheduling.traces.record import JobLog, LoggedJob, expanded


def read_queue(path: str | Path, now_s: float | None = None) -> JobLog:
    """Read a queue from a file: what ``squeue``, ``sacct``, ``kubectl get workloads -o yaml`` or Ray's list printed.

    Args:
        now_s: time at which it was printed, in seconds since 1970; None: as the file states it, or the
            latest time in it, or when it was written.

    Returns:
        The jobs, with an entry for each waiting task of an array. Ended jobs of the file are among them. ``moment_s`` is on the
        clock of the jobs.

    Raises:
        UserError: a file of unknown form.
    """
    source = JobFile.read(path)
    written = Path(path).stat().st_mtime if now_s is None else now_s
    return _queue(_empty(source) or parse_log(source), written, now_s is not None)


def parse_queue(text: str, name: str, now_s: float) -> JobLog:
    """Read a queue from the text that a program named ``name`` printed at ``now_s``. Errors as ``read_queue``."""
    source = JobFile.of(text, name)
    return _queue(_empty(source) or parse_log(source), now_s, True)


_EMPTY = {"jobs": "squeue_json", "items": "kueue"}
"""Key of the list of jobs by the form of an empty queue, whose objects tell nothing else."""


def _empty(source: JobFile) -> JobLog | None:
    """Return the log of objects that hold no job at all; None if they hold any."""
    if source.objects is None or len(source.objects) != 1:
        return None
    found = source.objects[0]
    if found == []:
        return JobLog(jobs=(), form="ray", file=source.name)
    held = [key for key in _EMPTY if isinstance(found, Mapping) and found.get(key) == []]
    if not held:
        return None
    printed = number_of(found.get("last_update"))
    moment_s = float(printed) if printed.isdecimal() else math.nan
    return JobLog(jobs=(), form=_EMPTY[held[0]], file=source.name, moment_s=moment_s)


def _queue(log: JobLog, now_s: float, given: bool) -> JobLog:
    notes = log.notes
    moment_s = log.moment_s
    if given:
        moment_s = _on_clock(log, now_s)
    elif math.isnan(moment_s):
        moment_s = _latest_report(log)
        if not moment_s and (moment_s := _latest_time(log)):
            notes = (
                *notes,
                f"{log.file} does not say when it was printed: its latest time counts as now (--at).",
            )
        moment_s = moment_s or _on_clock(log, now_s)
    jobs = tuple(_started(job, moment_s) for job in expanded(log.jobs))
    return replace(log, jobs=jobs, moment_s=moment_s, notes=notes)


def _started(job: LoggedJob, moment_s: float) -> LoggedJob:
    """Return a running job with its start and its run time so far, one from the other."""
    if job.state != "running":
        return job
    if math.isnan(job.start_s) and job.run_s >= 0:
        return replace(job, start_s=moment_s - job.run_s)
    if math.isnan(job.run_s) and moment_s >= job.start_s:
        return replace(job, run_s=moment_s - job.start_s)
    return job


def _latest_report(log: JobLog) -> float:
    """Return the latest start plus run time of a running job, which is when the queue was printed; 0 if none states both."""
    known = (job.start_s + job.run_s for job in log.in_state("running"))
    return max((moment for moment in known if not math.isnan(moment)), default=0.0)


def _latest_time(log: JobLog) -> float:
    """Return the latest submission, start or end of a job, which the queue is no older than; 0 if it states none."""
    times = (moment for job in log.jobs for moment in (job.submit_s, job.start_s, job.end_s))
    return max((moment for moment in times if not math.isnan(moment)), default=0.0)


def _on_clock(log: JobLog, now_s: float) -> float:
    """Return a time on the clock of a log. A wall clock is that of this machine."""
    if log.clock == "local":
        return datetime.fromtimestamp(now_s).replace(tzinfo=UTC).timestamp()
    if log.clock == "own":
        times = (value for job in log.jobs for value in (job.submit_s, job.start_s, job.end_s))
        return max((value for value in times if not math.isnan(value)), default=0.0)
    return now_s
