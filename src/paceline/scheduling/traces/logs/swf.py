"""Reader of the Standard Workload Format of the Parallel Workloads Archive (Feitelson, version 2.2): 18 numbers a line."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping

from paceline.scheduling.traces.content import JobFile
from paceline.scheduling.traces.record import JobLog, JobState, LoggedJob, SkippedRow

COLUMNS = (
    *("job", "submit", "wait", "run", "allocated", "cpu", "memory", "requested", "limit", "requested_memory"),
    *("status", "user", "group", "executable", "queue", "partition", "preceding", "think"),
)
"""Fields in their order. -1 means unknown."""
STATUS = {0: "FAILED", 1: "COMPLETED", 2: "PARTIAL", 3: "PARTIAL", 4: "PARTIAL", 5: "CANCELLED"}
_HEADER = re.compile(r"^;\s*(?P<key>[A-Za-z]+):\s*(?P<value>.*)$")
PROCESSORS = "A processor of the log counts as a device."


def is_swf(source: JobFile) -> bool:
    """Return whether a file is a workload of this format: comments behind semicolons, then 18 numbers a line."""
    for line in source.lines[:2000]:
        words = line.split()
        if words and not line.lstrip().startswith(";"):
            return len(words) == len(COLUMNS) and all(_is_number(word) for word in words)
    return False


def read_swf(source: JobFile) -> JobLog:
    """Read rigid jobs with their processors. A part of a job that was checkpointed is left out if its whole is in the file."""
    jobs: list[LoggedJob] = []
    skipped: list[SkippedRow] = []
    header: dict[str, str] = {}
    rows: list[tuple[int, str, dict[str, float]]] = []
    for number, line in enumerate(source.lines, start=1):
        place = f"{source.name}, line {number}"
        if line.lstrip().startswith(";"):
            if found := _HEADER.match(line.strip()):
                header[found["key"].casefold()] = found["value"].strip()
            continue
        words = line.split()
        if not words:
            continue
        if len(words) != len(COLUMNS) or not all(map(_is_number, words)):
            skipped.append(SkippedRow(place, words[0][:40], "had other than 18 numbers"))
            continue
        rows.append((number, place, dict(zip(COLUMNS, map(float, words), strict=True))))
    whole = Counter(row["job"] for _, _, row in rows if row["status"] in (0, 1))
    for _, place, row in rows:
        name = f"{row['job']:.0f}"
        if row["status"] in (2, 3, 4) and whole[row["job"]]:
            skipped.append(SkippedRow(place, name, "were parts of a checkpointed job whose whole is another line"))
            continue
        jobs.append(_job(row, name, place))
    return JobLog(
        jobs=tuple(jobs),
        form="swf",
        file=source.name,
        skipped=tuple(skipped),
        clock="own",
        notes=(PROCESSORS, *_machine(header)),
    )


def _job(row: Mapping[str, float], name: str, place: str) -> LoggedJob:
    wait, run = _known(row["wait"]), _known(row["run"])
    submit = _known(row["submit"])
    start = submit + wait if not math.isnan(wait) else math.nan
    state: JobState = "ended" if run >= 0 or row["status"] >= 0 else "waiting"
    processors = next((value for value in (row["allocated"], row["requested"]) if value > 0), 0.0)
    return LoggedJob(
        name=name,
        state=state,
        status=STATUS.get(int(row["status"]), "UNKNOWN"),
        submit_s=submit,
        start_s=start,
        end_s=start + run,
        run_s=run,
        limit_s=max(row["limit"], 0.0),
        devices=int(processors),
        user=_id(row["user"], "u"),
        account=_id(row["group"], "g"),
        queue=_id(row["queue"], "q") or _id(row["partition"], "p"),
        title=_id(row["executable"], "app"),
        place=place,
    )


def _machine(header: Mapping[str, str]) -> list[str]:
    """Describe the machine of the log by its header."""
    counts = [f"{header[name]} {key}" for name, key in (("maxnodes", "nodes"), ("maxprocs", "processors")) if header.get(name)]
    named = header.get("computer", "") or header.get("installation", "")
    if not named and not counts:
        return []
    return [f"The log is of {named[:80] or 'a machine'}{' with ' if counts else ''}{' and '.join(counts)}."]


def _known(value: float) -> float:
    return value if value >= 0 else math.nan


def _id(value: float, letter: str) -> str:
    return f"{letter}{value:.0f}" if value >= 0 else ""


def _is_number(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False
