"""Reader of Philly's ``cluster_job_log``: JSON, a job with its attempts (msr-fiddle/philly-traces, README)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.scheduling.traces.content import JobFile, texts
from paceline.scheduling.traces.logs.log_times import after_clock_change, parse_time
from paceline.scheduling.traces.logs.slurm_jobs import CLOCK_CHANGED
from paceline.scheduling.traces.record import JobLog, JobState, LoggedJob, SkippedRow

SEVERAL_ATTEMPTS = "had several attempts, and each counts with the time of all"


def is_philly(objects: Sequence[Any]) -> bool:
    """Return whether objects are jobs of Philly."""
    job = next(iter(_jobs(objects)), None)
    return isinstance(job, Mapping) and {"jobid", "attempts", "submitted_time"} <= job.keys()


def read_philly_log(source: JobFile) -> JobLog:
    """Read rigid jobs. A job runs as long as all its attempts together, on the devices of its last one."""
    jobs: list[LoggedJob] = []
    skipped: list[SkippedRow] = []
    for number, item in enumerate(_jobs(source.objects or ()), start=1):
        place = f"{source.name}, job {number}"
        name = texts(item, "jobid") if isinstance(item, Mapping) else ""
        try:
            jobs.append(_job(item, name, place))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            skipped.append(SkippedRow(place, name, "had wrong values", str(error)[:80]))
    return JobLog(jobs=tuple(jobs), form="philly", file=source.name, skipped=tuple(skipped), clock="local")


def _jobs(objects: Sequence[Any]) -> Sequence[Any]:
    """Return the jobs: one list of them, or one document each."""
    return objects[0] if len(objects) == 1 and isinstance(objects[0], list) else objects


def _job(item: Mapping[str, Any], name: str, place: str) -> LoggedJob:
    if not name:
        raise ValueError("it has no jobid")
    submit = parse_time(texts(item, "submitted_time"))
    attempts = [attempt for attempt in item["attempts"] if attempt]
    spans = [(parse_time(texts(each, "start_time")), parse_time(texts(each, "end_time"))) for each in attempts]
    start = min((begin for begin, _ in spans if not math.isnan(begin)), default=math.nan)
    run = sum(after_clock_change(begin, end) - begin for begin, end in spans if not math.isnan(end - begin))
    held = [sum(len(server["gpus"]) for server in each.get("detail") or ()) for each in attempts]
    open_end = bool(spans) and math.isnan(spans[-1][1]) and not math.isnan(spans[-1][0])
    state: JobState = "running" if open_end else "ended"
    fixed = after_clock_change(submit, start)
    notes = [SEVERAL_ATTEMPTS] * (len(spans) > 1) + [CLOCK_CHANGED] * (fixed != start and not math.isnan(start))
    return LoggedJob(
        name=name,
        state=state,
        status=texts(item, "status"),
        submit_s=submit,
        start_s=fixed,
        end_s=max((end for _, end in spans if not math.isnan(end)), default=math.nan) if not open_end else math.nan,
        run_s=run if spans else math.nan,
        devices=next((count for count in reversed(held) if count), 0),
        nodes=len(attempts[-1].get("detail") or ()) if attempts else 0,
        user=texts(item, "user"),
        queue=texts(item, "vc"),
        place=place,
        notes=tuple(notes),
    )
