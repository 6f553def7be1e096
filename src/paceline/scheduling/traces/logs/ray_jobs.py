"""Reader of Ray's list of jobs: JSON of ``/api/jobs/`` (dashboard/modules/job/pydantic_models.py, ``JobDetails``)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.scheduling.traces.content import JobFile, texts
from paceline.scheduling.traces.record import JobLog, JobState, LoggedJob, SkippedRow

COMMAND = "curl http://127.0.0.1:8265/api/jobs/"
"""Command that prints the list."""
_STATES: Mapping[str, JobState] = {"PENDING": "waiting", "RUNNING": "running"}
_GPUS = re.compile(r"--(?:num[-_]gpus|gpus|num[-_]workers|nproc[-_]per[-_]node)[= ](\d+)")


def is_ray(objects: Sequence[Any]) -> bool:
    """Return whether objects are jobs of Ray."""
    job = next(iter(_jobs(objects)), None)
    return isinstance(job, Mapping) and {"entrypoint", "status"} <= job.keys()


def read_ray(source: JobFile) -> JobLog:
    """Read the jobs. Ray's list states no devices unless they are in the metadata or in the command."""
    jobs: list[LoggedJob] = []
    skipped: list[SkippedRow] = []
    for number, item in enumerate(_jobs(source.objects or ()), start=1):
        place = f"{source.name}, job {number}"
        try:
            jobs.append(_job(item, place))
        except (ValueError, TypeError, AttributeError) as error:
            skipped.append(SkippedRow(place, "", "had wrong values", str(error)[:80]))
    return JobLog(jobs=tuple(jobs), form="ray", file=source.name, skipped=tuple(skipped))


def _jobs(objects: Sequence[Any]) -> Sequence[Any]:
    """Return the jobs: a list of them, or a table by id."""
    first = objects[0] if objects else None
    if isinstance(first, list):
        return first
    if (
        isinstance(first, Mapping)
        and "entrypoint" not in first
        and first
        and all(isinstance(v, Mapping) for v in first.values())
    ):
        return list(first.values())
    return objects


def _job(item: Mapping[str, Any], place: str) -> LoggedJob:
    name = texts(item, "submission_id") or texts(item, "job_id")
    if not name:
        raise ValueError("it has no id")
    status = texts(item, "status")
    state = _STATES.get(status, "ended")
    began, ended = (float(texts(item, key) or "nan") / 1000 for key in ("start_time", "end_time"))
    command = texts(item, "entrypoint")
    stated = texts(item, "entrypoint_num_gpus") or texts(item, "metadata", "num_gpus") or texts(item, "metadata", "gpus")
    in_command = _GPUS.search(command)
    devices = float(stated or (in_command[1] if in_command else "0"))
    return LoggedJob(
        name=name,
        title=texts(item, "metadata", "name"),
        state=state,
        status=status,
        submit_s=began,
        start_s=began if state != "waiting" else math.nan,
        end_s=ended if state == "ended" else math.nan,
        run_s=ended - began if state == "ended" else math.nan,
        devices=math.ceil(devices),
        share=devices if 0 < devices < 1 else 1.0,
        user=texts(item, "metadata", "user"),
        reason=texts(item, "message") if state == "waiting" else "",
        command=command,
        place=place,
    )
