"""Readers of ``sacct --json`` and ``squeue --json`` (Slurm's openapi/v0.0.38 and data_parser/v0.0.39 and later)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paceline.scheduling.traces.content import JobFile, texts
from paceline.scheduling.traces.logs.gres import tres_text
from paceline.scheduling.traces.logs.slurm_jobs import slurm_job
from paceline.scheduling.traces.record import JobLog, LoggedJob, SkippedRow

Value = Mapping[str, Any]


def is_sacct(objects: list[Any]) -> bool:
    """Return whether objects are what ``sacct --json`` prints: jobs with a table of times."""
    job = _some_job(objects)
    return job is not None and isinstance(job.get("time"), Mapping)


def is_squeue(objects: list[Any]) -> bool:
    """Return whether objects are what ``squeue --json`` prints: jobs with a state and a submission."""
    job = _some_job(objects)
    return job is not None and "job_state" in job


def read_sacct_json(source: JobFile) -> JobLog:
    """Read what ``sacct --json`` printed."""
    return _read(source, "sacct", _sacct_cells)


def read_squeue_json(source: JobFile) -> JobLog:
    """Read what ``squeue --json`` printed."""
    return _read(source, "squeue", _squeue_cells)


def _some_job(objects: list[Any]) -> Value | None:
    """Return the first job of the list ``jobs``; None if there is none."""
    first = objects[0] if objects else None
    jobs = first.get("jobs") if isinstance(first, Mapping) else None
    return next((job for job in jobs if isinstance(job, Mapping)), None) if isinstance(jobs, list) else None


def _read(source: JobFile, form: str, cells_of: Any) -> JobLog:
    root = (source.objects or [{}])[0]
    made: list[LoggedJob | SkippedRow] = []
    for number, job in enumerate(root["jobs"], start=1):
        place = f"{source.name}, job {number}"
        is_job = isinstance(job, Mapping)
        made.append(slurm_job(cells_of(job), place) if is_job else SkippedRow(place, "", "were no job"))
    moment = number_of(root.get("last_update"))
    return JobLog.of(made, form=form, file=source.name, moment_s=float(moment) if moment.isdecimal() else math.nan)


def number_of(value: Any) -> str:
    """Return a number of Slurm's JSON, which may be a table with ``set``, ``infinite`` and ``number``; empty if it is unset."""
    if isinstance(value, Mapping):
        if value.get("infinite") or value.get("set") is False:
            return ""
        value = value.get("number")
    return "" if value is None or isinstance(value, Mapping | list) else str(value)


def _word(value: Any) -> str:
    """Return a text, or the first of a list of texts: a state is ``RUNNING`` or ``["RUNNING", "RESIZING"]``."""
    value = value[0] if isinstance(value, list) and value else value
    return "" if value is None or isinstance(value, Mapping | list) else str(value)


def _state(value: Any) -> str:
    """Return the state of a job, which is COMPLETING if that is among its flags (job_state_string_complete of slurm)."""
    return "COMPLETING" if isinstance(value, list) and "COMPLETING" in value else _word(value)


def _sacct_cells(job: Value) -> dict[str, str]:
    time, state, tres, array = (_table(job, key) for key in ("time", "state", "tres", "array"))
    het = _table(job, "het")
    number = number_of(job.get("job_id"))
    if int_or_0(number_of(het.get("job_id"))):
        number = f"{number_of(het.get('job_id'))}+{number_of(het.get('job_offset')) or 0}"
    waiting = texts(array, "task")
    parent = number_of(array.get("job_id"))
    return {
        "id": f"{parent}_[{waiting}]" if waiting and int_or_0(parent) else number,
        "array_id": parent,
        "array_task": number_of(array.get("task_id")),
        "title": texts(job, "name"),
        "user": texts(job, "user") or texts(job, "association", "user"),
        "account": texts(job, "account"),
        "queue": texts(job, "partition"),
        "qos": texts(job, "qos"),
        "submit": number_of(time.get("submission")),
        "eligible": number_of(time.get("eligible")),
        "start": number_of(time.get("start")),
        "end": number_of(time.get("end")),
        "elapsed_s": number_of(time.get("elapsed")),
        "limit_minutes": number_of(time.get("limit")),
        "state": _word(state.get("current")),
        "reason": _word(state.get("reason")),
        "nodes": number_of(job.get("allocation_nodes")),
        "node_list": texts(job, "nodes"),
        "alloc_tres": _tres(tres.get("allocated")),
        "req_tres": _tres(tres.get("requested")),
        "priority": number_of(job.get("priority")),
        "command": texts(job, "submit_line"),
    }


def _squeue_cells(job: Value) -> dict[str, str]:
    number = number_of(job.get("job_id"))
    parent, waiting = number_of(job.get("array_job_id")), texts(job, "array_task_string")
    if int_or_0(number_of(job.get("het_job_id"))):
        number = f"{number_of(job.get('het_job_id'))}+{number_of(job.get('het_job_offset')) or 0}"
    detail = job.get("gres_detail")
    return {
        "id": f"{parent}_[{waiting}]" if waiting and int_or_0(parent) else number,
        "array_id": parent,
        "array_task": number_of(job.get("array_task_id")),
        "array_most": number_of(job.get("array_max_tasks")),
        "title": texts(job, "name"),
        "user": texts(job, "user_name") or number_of(job.get("user_id")),
        "account": texts(job, "account"),
        "queue": texts(job, "partition"),
        "qos": texts(job, "qos"),
        "submit": number_of(job.get("submit_time")),
        "eligible": number_of(job.get("eligible_time")),
        "start": number_of(job.get("start_time")),
        "end": number_of(job.get("end_time")),
        "limit_minutes": number_of(job.get("time_limit")),
        "state": _state(job.get("job_state")),
        "reason": _word(job.get("state_reason")),
        "nodes": number_of(job.get("node_count")),
        "cpus": number_of(job.get("cpus")),
        "node_list": texts(job, "nodes"),
        "alloc_tres": texts(job, "tres_alloc_str"),
        "alloc_gres": ",".join(map(str, detail)) if isinstance(detail, list) else "",
        "req_tres": texts(job, "tres_req_str"),
        "job_tres": texts(job, "tres_per_job"),
        "node_tres": texts(job, "tres_per_node"),
        "task_tres": texts(job, "tres_per_task"),
        "tasks": number_of(job.get("tasks")),
        "priority": number_of(job.get("priority")),
        "dependency": texts(job, "dependency"),
        "command": texts(job, "command"),
    }


def _table(job: Value, key: str) -> Value:
    value = job.get(key)
    return value if isinstance(value, Mapping) else {}


def _tres(entries: Any) -> str:
    """Return a list of TRES as the text of ``AllocTRES``."""
    if not isinstance(entries, list):
        return ""
    found = []
    for entry in entries:
        count = number_of(entry.get("count")) if isinstance(entry, Mapping) else ""
        if count.removeprefix("-").isdigit():
            found.append((texts(entry, "type"), texts(entry, "name"), float(count)))
    return tres_text(found)


def int_or_0(text: str) -> int:
    """Return a whole number; 0 for another text."""
    return int(text) if text.isdecimal() else 0
