"""Reader of the output of Slurm's ``sacct -P``: a row per job, step and array task, with values separated by bars.

``sacct -a -X -P --format=JobID,User,Account,Submit,Start,End,State,AllocTRES`` (man 1 sacct, "Job Accounting Fields").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.scheduling.job import Job
from paceline.scheduling.traces.trace import Trace, job_of_row

COLUMNS = ("JobID", "Submit", "Start", "End", "State")
FORMAT = "sacct -a -X -P --format=JobID,User,Account,Submit,Start,End,State,AllocTRES"
_NEVER = frozenset({"", "Unknown", "None", "N/A"})
_GPUS = re.compile(r"(?:^|,)gres/gpu(?::([^=,]+))?=(\d+)")


@dataclass(frozen=True, slots=True)
class _Ran:
    """Job that ran, in seconds since the epoch."""

    row: Row
    submit_s: float
    ran_s: float
    devices: int


def read_sacct(rows: Sequence[Row]) -> Trace:
    """Read rigid jobs with their run times. Steps, and jobs that never ran, still run, or hold no GPU, are left out.

    Raises:
        UserError: a file without AllocTRES and AllocNodes; no job ran; a wrong time, with its row and column.
    """
    counted = next((column for column in ("AllocTRES", "AllocNodes", "NNodes") if column in rows[0].values), "")
    if not counted:
        raise UserError(f"{rows[0].file} lacks the column AllocTRES or AllocNodes", f"write it with {FORMAT}")
    left_out: Counter[str] = Counter()
    jobs = [row for row in rows if "." not in row.text("JobID")]
    ran = [job for row in jobs if (job := _ran(row, counted, left_out)) is not None]
    if not ran:
        reasons = "; ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise UserError(
            f"no job of {rows[0].file} ran on devices ({reasons or 'it has only steps'})", f"write it with {FORMAT}"
        )
    first = min(job.submit_s for job in ran)
    names: Counter[str] = Counter()
    made = []
    for job in ran:
        name = job.row.text("JobID")
        names[name] += 1
        again = f", run {names[name]}" if names[name] > 1 else ""
        made.append(job_of_row(job.row, lambda job=job, again=again: _job(job, first, again)))  # type: ignore[misc]
    notes = [f"{count:,} of {len(jobs):,} jobs left out: {reason}." for reason, count in left_out.items()]
    return Trace(tuple(made), tuple(job.row.place for job in ran), (*notes, *_failures(ran), *_units(counted)))


def _job(ran: _Ran, first_s: float, again: str) -> Job:
    row = ran.row
    return Job(
        name=row.text("JobID") + again,
        arrival_s=ran.submit_s - first_s,
        duration_s=ran.ran_s,
        devices=ran.devices,
        owner=row.text("User"),
        virtual_cluster=row.text("Account") or row.text("Partition"),
    )


def _ran(row: Row, counted: str, left_out: Counter[str]) -> _Ran | None:
    """Return the job of a row; None, with the reason counted, if it is left out."""
    start, end = _moment(row, "Start"), _moment(row, "End")
    submit = _moment(row, "Submit")
    devices = _devices(row, counted)
    if start is None or submit is None:
        left_out["they never started"] += 1
    elif end is None:
        left_out["they had not ended"] += 1
    elif end < start or start < submit:
        raise row.wrong("End" if end < start else "Start", f"after its {'Start' if end < start else 'Submit'}")
    elif end == start:
        left_out["they ran for 0 s"] += 1
    elif devices == 0:
        left_out["they held no GPU"] += 1
    else:
        return _Ran(row, submit, end - start, devices)
    return None


def _moment(row: Row, column: str) -> float | None:
    """Return the seconds since the epoch, in the cluster's time zone; None if it never happened."""
    text = row.text(column)
    if text in _NEVER:
        return None
    try:
        return (datetime.fromisoformat(text).replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()
    except ValueError:
        raise row.wrong(column, "a time such as 2026-11-23T08:00:00") from None


def _devices(row: Row, counted: str) -> int:
    text = row.text(counted)
    if counted != "AllocTRES":
        return row.whole(counted) or 0
    found: Mapping[str, int] = {kind: int(count) for kind, count in _GPUS.findall(text)}
    return found.get("", 0) or sum(found.values())


def _failures(ran: Sequence[_Ran]) -> list[str]:
    """Return a sentence that counts the jobs with another state than COMPLETED."""
    states = Counter(job.row.text("State").split(" ")[0].rstrip("+") for job in ran)
    states.pop("COMPLETED", 0)
    if not states:
        return []
    kinds = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    return [f"{sum(states.values()):,} jobs did not complete ({kinds}); each counts with the time that it ran."]


def _units(counted: str) -> list[str]:
    return [] if counted == "AllocTRES" else [f"Without AllocTRES a node counts as one device ({counted})."]
