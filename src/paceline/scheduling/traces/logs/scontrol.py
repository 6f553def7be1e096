"""Reader of ``scontrol show job``: a paragraph a job, or a line with ``-o``, such as ``JobState=RUNNING`` (scontrol(1))."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from paceline.scheduling.traces.content import JobFile
from paceline.scheduling.traces.logs.log_times import is_wall_clock
from paceline.scheduling.traces.logs.slurm_jobs import slurm_job
from paceline.scheduling.traces.record import JobLog

COMMAND = "scontrol show job"
"""Command that prints the jobs."""
_START = re.compile(r"^\s*JobId=\d+")
_PAIR = re.compile(r"(?:^|\s)([A-Z][\w:/]*)=(.*?)(?=\s+[A-Z][\w:/]*=|\s*$)")
_KEYS: Mapping[str, tuple[str, ...]] = {
    "id": ("JobId",),
    "array_id": ("ArrayJobId",),
    "array_task": ("ArrayTaskId",),
    "title": ("JobName",),
    "user": ("UserId",),
    "account": ("Account",),
    "queue": ("Partition",),
    "qos": ("QOS",),
    "submit": ("SubmitTime",),
    "eligible": ("EligibleTime",),
    "start": ("StartTime",),
    "end": ("EndTime",),
    "elapsed": ("RunTime",),
    "limit": ("TimeLimit",),
    "state": ("JobState",),
    "reason": ("Reason",),
    "nodes": ("NumNodes",),
    "cpus": ("NumCPUs",),
    "node_list": ("NodeList",),
    "alloc_tres": ("AllocTRES",),
    "req_tres": ("ReqTRES", "TRES"),
    "job_tres": ("TresPerJob",),
    "task_tres": ("TresPerTask",),
    "tasks": ("NumTasks",),
    "node_tres": ("TresPerNode", "Gres"),
    "priority": ("Priority",),
    "dependency": ("Dependency",),
    "command": ("Command",),
}


def is_scontrol(source: JobFile) -> bool:
    """Return whether a file is what ``scontrol show job`` printed."""
    return bool(_START.match(next((line for line in source.lines if line.strip()), "")))


def read_scontrol(source: JobFile) -> JobLog:
    """Read the jobs."""
    made = []
    local = False
    for number, text in _paragraphs(source):
        words = dict(_PAIR.findall(text))
        cells = {field: next((words[key] for key in keys if words.get(key)), "") for field, keys in _KEYS.items()}
        cells["user"] = cells["user"].partition("(")[0]
        if "-" in cells["array_task"] or "," in cells["array_task"]:
            cells["id"] = f"{cells['array_id']}_[{cells['array_task']}]"
        if words.get("HetJobId", "0") != "0":
            cells["id"] = f"{words['HetJobId']}+{words.get('HetJobOffset', '0')}"
        made.append(slurm_job(cells, f"{source.name}, line {number}"))
        local = local or is_wall_clock(cells["submit"])
    return JobLog.of(made, form="scontrol", file=source.name, clock="local" if local else "utc")


def _paragraphs(source: JobFile) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each job."""
    first = 0
    lines: list[str] = []
    for number, line in enumerate(source.lines, start=1):
        if _START.match(line):
            if lines:
                yield first, " ".join(lines)
            first, lines = number, [line.strip()]
        elif lines:
            lines.append(line.strip())
    if lines:
        yield first, " ".join(lines)
