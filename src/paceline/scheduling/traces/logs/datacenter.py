"""Readers of the tables that datacenters published: Helios, Acme, Alibaba's openb, PAI and spot, MIT SuperCloud.

Columns are those of the READMEs of S-Lab-System-Group/HeliosData, InternLM/AcmeTrace, MIT-AI-Accelerator/MIT-Supercloud-Dataset
and alibaba/clusterdata (cluster-trace-gpu-v2020, cluster-trace-gpu-v2023, cluster-trace-v2026-spot-gpu).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.scheduling.traces.content import JobFile, TextTable
from paceline.scheduling.traces.logs.log_times import after_clock_change, is_wall_clock, parse_time
from paceline.scheduling.traces.logs.slurm_columns import fields_of
from paceline.scheduling.traces.logs.slurm_jobs import CLOCK_CHANGED, slurm_job
from paceline.scheduling.traces.record import JobLog, JobState, LoggedJob, SkippedRow

HELIOS = ("job_id", "user", "vc", "gpu_num", "node_num", "state", "submit_time", "start_time", "end_time", "duration", "queue")
ACME = (
    "job_id",
    "user",
    "node_num",
    "gpu_num",
    "type",
    "state",
    "submit_time",
    "start_time",
    "end_time",
    "duration",
    "gpu_time",
)
OPENB = ("name", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase", "creation_time", "deletion_time", "scheduled_time")
SPOT = ("job_name", "organization", "gpu_model", "gpu_request", "worker_num", "submit_time", "duration", "job_type")
SUPERCLOUD = ("id_job", "time_submit", "time_start", "time_end", "state", "tres_alloc")
PAI_TASK = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
PAI_JOB = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
PAI_STATES = frozenset({"Terminated", "Failed", "Running", "Waiting"})
_TRES_IDS = {"1": "cpu", "2": "mem", "4": "node", "5": "billing", "1001": "gres/gpu:tesla", "1002": "gres/gpu:volta"}
"""Numbers of TRES. The first are fixed (slurmdb.h, ``tres_types_t``), the others are SuperCloud's (tres-mapping.txt)."""
_SUPERCLOUD_TYPES = {"volta": "V100", "tesla": "K80"}
_MEMORY = re.compile(r"^([A-Z]+\d+)M(\d+)$")
STILL_RAN = "still ran at the end of the log, and each counts with the time until then"


@dataclass(frozen=True, slots=True)
class _JobColumns:
    """Columns of a table with a row per job, by field of ``LoggedJob``. An empty name: the table has none."""

    name: str
    submit: str
    start: str = ""
    end: str = ""
    run: str = ""
    devices: str = ""
    each: str = ""
    nodes: str = ""
    status: str = ""
    user: str = ""
    account: str = ""
    queue: str = ""
    title: str = ""


_HELIOS = _JobColumns(
    *("job_id", "submit_time", "start_time", "end_time", "duration", "gpu_num"),
    nodes="node_num",
    status="state",
    user="user",
    queue="vc",
)
_ACME = _JobColumns(
    *("job_id", "submit_time", "start_time", "end_time", "duration", "gpu_num"),
    nodes="node_num",
    status="state",
    user="user",
    title="type",
)
_OPENB = _JobColumns("name", "creation_time", "scheduled_time", "deletion_time", devices="num_gpu", status="pod_phase")
_SPOT = _JobColumns(
    "job_name",
    "submit_time",
    run="duration",
    devices="gpu_request",
    each="worker_num",
    nodes="worker_num",
    account="organization",
)


def read_helios(source: JobFile) -> JobLog:
    """Read a ``cluster_log.csv`` of Helios."""
    return _each_row(source, "helios", lambda row: _job(row, _HELIOS))


def read_acme(source: JobFile) -> JobLog:
    """Read ``trace_seren.csv`` or ``trace_kalos.csv`` of Acme."""
    return _each_row(source, "acme", lambda row: _job(row, _ACME))


def read_openb(source: JobFile) -> JobLog:
    """Read the pods of Alibaba's openb. ``gpu_milli`` is the share of its GPU that a pod on one GPU asks for."""

    def make(row: Row) -> dict[str, object]:
        fields = _job(row, _OPENB, counted=True)
        milli = _float(row, "gpu_milli", 1000.0)
        spec = row.text("gpu_spec")
        types = [] if spec.casefold() in ("", "nan") else [_memory_words(each) for each in spec.split("|")]
        running = row.text("pod_phase") == "Running" and fields["state"] == "ended"
        return {
            **fields,
            "share": min(milli / 1000, 1.0) if fields["devices"] == 1 and milli > 0 else 1.0,
            "device_types": tuple(types),
            "qos": row.text("qos"),
            "notes": (STILL_RAN,) if running else (),
        }

    return _each_row(source, "openb", make, clock="own")


def read_spot(source: JobFile) -> JobLog:
    """Read the jobs of Alibaba's trace of spot GPUs. Spot jobs may be stopped for jobs of high priority (HP)."""

    def make(row: Row) -> dict[str, object]:
        high = row.text("job_type") == "HP"
        model = row.text("gpu_model")
        types = (model,) if model.casefold() not in ("", "nan") else ()
        own = _float(row, "gpu_request", 0.0)
        share = own if 0 < own < 1 else 1.0
        fields = _job(row, _SPOT, counted=True)
        return {
            **fields,
            "device_types": types,
            "priority": float(high),
            "preemptible": not high,
            "qos": row.text("job_type"),
            "share": share,
        }

    return _each_row(source, "spot", make, clock="own")


def read_supercloud(source: JobFile) -> JobLog:
    """Read MIT SuperCloud's ``slurm-log.csv``, or another dump of the table of jobs in Slurm's database.

    TRES are numbers there: ``1=20,2=170000,1002=2`` holds two Volta. ``timelimit`` is in minutes.
    """
    table = _table(source)
    fields = fields_of(table.header)
    fields["limit_minutes"] = fields.pop("limit", [])
    rows, skipped = table.rows()
    made = []
    for row in rows:
        cells = {field: next((text for name in names if (text := row.text(name))), "") for field, names in fields.items()}
        for name in ("alloc_tres", "req_tres"):
            if name in cells:
                cells[name] = _named_tres(cells[name])
        made.append(slurm_job(cells, row.place))
    return JobLog.of(made, skipped, form="supercloud", file=source.name)


def read_pai(source: JobFile) -> JobLog:
    """Read Alibaba PAI's ``pai_task_table.csv``, with or without a header.

    A job is all tasks of one name. ``plan_gpu`` is in hundredths of a GPU an instance. Submissions and users are those of
    ``pai_job_table.csv``, if it is in the same folder: the gap from there to the first task is the wait. Without it, a job
    arrives with its first task.
    """
    table = _table(source)
    header, more = _headed(table, PAI_TASK)
    rows, skipped = more.rows(header)
    launched = _pai_jobs(source)
    tasks: dict[str, list[Row]] = {}
    for row in rows:
        tasks.setdefault(row.text("job_name"), []).append(row)
    jobs: list[LoggedJob] = []
    for name, group in tasks.items():
        try:
            jobs.append(_pai_job(name, group, launched.get(name)))
        except (ValueError, OverflowError) as error:
            skipped.append(SkippedRow(group[0].place, name[:40], "had a wrong number", str(error)[:80]))
    note = () if launched else ("Without pai_job_table.csv in its folder, a job arrives when its first task starts.",)
    return JobLog(jobs=tuple(jobs), form="pai", file=source.name, skipped=tuple(skipped), clock="own", notes=note)


def is_pai(table: TextTable) -> bool:
    """Return whether a table is one of tasks of PAI, by its header or by the values of its first row."""
    first = table.header
    if set(PAI_TASK[:9]) <= set(first):
        return True
    return len(first) == len(PAI_TASK) and first[3] in PAI_STATES and all(_is_number(first[at]) for at in (2, 4) if first[at])


def is_pai_jobs(table: TextTable) -> bool:
    """Return whether a table is PAI's ``pai_job_table.csv``, which lists no GPUs."""
    first = table.header
    return set(PAI_JOB) <= set(first) or (len(first) == len(PAI_JOB) and first[3] in PAI_STATES and _is_number(first[4] or "0"))


def refuse_pai_jobs(source: JobFile) -> JobLog:
    """Raise UserError for PAI's table of jobs."""
    raise UserError(f"{source.name} is PAI's table of jobs, which lists no GPUs", "give pai_task_table.csv, in the same folder")


def _pai_job(name: str, tasks: Sequence[Row], launched: tuple[float, str] | None) -> LoggedJob:
    starts, ends, planned, types = [], [], [], []
    for row in tasks:
        starts.append(parse_time(row.text("start_time"), zero_is_never=False))
        ends.append(parse_time(row.text("end_time"), zero_is_never=False))
        instances, gpus = _float(row, "inst_num", 1.0), _float(row, "plan_gpu", 0.0) / 100
        if gpus > 0 and instances > 0:
            planned.append((int(instances), gpus))
            types += [kind for kind in [row.text("gpu_type")] if kind and kind != "MISC"]
    devices = sum(count * math.ceil(gpus - 1e-9) for count, gpus in planned)
    share = sum(count * gpus for count, gpus in planned) / devices if devices else 1.0
    known = [moment for moment in starts if not math.isnan(moment)]
    start = min(known, default=math.nan)
    stated = {row.text("status") for row in tasks}
    over = not {"Running", "Waiting"} & stated
    end = max(ends) if ends and over and not any(map(math.isnan, ends)) else math.nan
    submit, user = launched or (start, "")
    state: JobState = "ended" if over else "running" if known and "Running" in stated else "waiting"
    kinds = tuple(dict.fromkeys(types))
    return LoggedJob(
        name=name,
        state=state,
        status=next((word for word in ("Failed", "Running", "Waiting") if word in stated), "COMPLETED"),
        submit_s=submit,
        start_s=start if launched else math.nan,
        end_s=end,
        run_s=end - start,
        devices=devices,
        device_types=tuple(map(_memory_words, kinds)) if len(kinds) == 1 else (),
        share=min(share, 1.0),
        user=user,
        place=tasks[0].place,
    )


def _pai_jobs(source: JobFile) -> Mapping[str, tuple[float, str]]:
    """Return submission and user of each job in the table next to the tasks; empty without it."""
    path = source.folder / "pai_job_table.csv" if source.folder else None
    if path is None or not path.is_file():
        return {}
    table = _table(JobFile.read(path))
    header, more = _headed(table, PAI_JOB)
    rows, _ = more.rows(header)
    found = {}
    for row in rows:
        try:
            submit = parse_time(row.text("start_time"), zero_is_never=False)
        except ValueError:
            continue
        if not math.isnan(submit):
            found[row.text("job_name")] = submit, row.text("user")
    return found


def _headed(table: TextTable, columns: Sequence[str]) -> tuple[tuple[str, ...], TextTable]:
    """Return the header of a table, and its rows. Without a header, the first line is a row."""
    if columns[0] in table.header:
        return table.header, table
    first = table.delimiter.join(table.header)
    return tuple(columns), TextTable(tuple(columns), table.delimiter, ((1, first), *table.lines), table.file)


def _each_row(source: JobFile, form: str, make: Callable[[Row], Mapping[str, object]], clock: str = "") -> JobLog:
    """Return the log of a table with a row per job."""
    table = _table(source)
    rows, skipped = table.rows()
    jobs: list[LoggedJob] = []
    for row in rows:
        try:
            jobs.append(LoggedJob(**make(row), place=row.place))  # type: ignore[arg-type]
        except (ValueError, OverflowError) as error:
            skipped.append(SkippedRow(row.place, _first_cell(row), "had a wrong time or number", str(error)[:80]))
    local = any(is_wall_clock(row.text("submit_time")) for row in rows[:1])
    return JobLog(
        jobs=tuple(jobs),
        form=form,
        file=source.name,
        skipped=tuple(skipped),
        clock=clock or ("local" if local else "utc"),  # type: ignore[arg-type]
    )


def _job(row: Row, columns: _JobColumns, counted: bool = False) -> dict[str, object]:
    """Return the fields of a job. ``counted``: times are seconds after the start of the trace, and 0 is one of them."""

    def moment(column: str) -> float:
        return parse_time(row.text(column), zero_is_never=not counted) if column else math.nan

    if not row.text(columns.name):
        raise ValueError(f"{columns.name} is empty")
    submit, start, end = moment(columns.submit), moment(columns.start), moment(columns.end)
    run = _float(row, columns.run, math.nan) if columns.run else math.nan
    changed = 0 < submit - start <= 3600 and not counted
    if changed:
        end += after_clock_change(submit, start) - start
        start = after_clock_change(submit, start)
    if not math.isnan(end - start):
        run = end - start
    count = math.ceil(_float(row, columns.devices, 0.0) - 1e-9)
    if columns.each:
        count *= int(_float(row, columns.each, 1.0))
    ended = run > 0 or not math.isnan(end)
    state: JobState = "ended" if ended and not (columns.start and math.isnan(start) and math.isnan(run)) else "waiting"
    status = row.text(columns.status) if columns.status else ""
    if state == "waiting" and status and status.upper() not in ("PENDING", "WAITING"):
        state = "ended"
    return {
        "name": row.text(columns.name),
        "state": state,
        "status": status,
        "submit_s": submit,
        "start_s": start,
        "end_s": end,
        "run_s": run,
        "devices": count,
        "nodes": int(_float(row, columns.nodes, 0.0)) if columns.nodes else 0,
        "user": row.text(columns.user) if columns.user else "",
        "account": row.text(columns.account) if columns.account else "",
        "queue": row.text(columns.queue) if columns.queue else "",
        "title": row.text(columns.title) if columns.title else "",
        "notes": (CLOCK_CHANGED,) if changed else (),
    }


def _float(row: Row, column: str, missing: float) -> float:
    """Return the number in a cell, or ``missing`` for an empty one. Raises ValueError for another text or a negative number."""
    text = row.text(column)
    if text.casefold() in ("", "nan", "none", "null"):
        return missing
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(f"{column} is {text[:40]!r}")
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _memory_words(name: str) -> str:
    """Return Alibaba's ``V100M32`` as ``V100 32GB``."""
    found = _MEMORY.match(name.strip())
    return f"{found[1]} {found[2]}GB" if found else name.strip()


def _named_tres(text: str) -> str:
    """Return TRES by name: ``cpu=20,gres/gpu:V100=2`` for ``1=20,1002=2``."""
    parts = []
    for part in text.strip("\"' ").split(","):
        number, equals, count = part.partition("=")
        name = _TRES_IDS.get(number.strip(), number.strip())
        for own, usual in _SUPERCLOUD_TYPES.items():
            name = name.replace(f":{own}", f":{usual}")
        parts.append(f"{name}{equals}{count}")
    return ",".join(parts)


def _first_cell(row: Row) -> str:
    return next((text.strip()[:40] for text in row.values.values()), "")


def _table(source: JobFile) -> TextTable:
    if source.table is None:
        raise UserError(f"{source.name} is no table", "give the CSV")
    return source.table
