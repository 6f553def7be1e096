"""Simulated schedules as JSON, the content of ``schedule.json`` in a run directory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet, NodeGroup, Outage
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.replayed_log import ReplayedLog
from paceline.scheduling.simulate.schedule import ClusterSchedule, ClusterSettings, JobOutcome, Span
from paceline.scheduling.simulate.simulated import SimulatedSchedule
from paceline.scheduling.traces.record import SkippedRow

SCHEMA = 1
_APART = {"job", "spans", "fleet", "outcomes"}
"""Fields that are written separately."""
_PAIRS = ("held_back", "preempted")
"""Lists of pairs of a time and a text."""


def to_json(simulated: Mapping[str, SimulatedSchedule]) -> dict[str, Any]:
    """Convert schedules of the same jobs on one cluster, by policy."""
    first = next(iter(simulated.values()))
    fleet = first.schedule.fleet
    return {
        "schema": SCHEMA,
        "groups": [group.to_json() for group in fleet.groups],
        "outages": [_plain(outage) for outage in fleet.outages],
        **({"nodes": list(fleet.names)} if fleet.names else {}),
        "jobs": [_job(outcome.job) for outcome in first.schedule.outcomes],
        "policies": {name: _simulated(one) for name, one in simulated.items()},
    }


def from_json(data: Mapping[str, Any]) -> dict[str, SimulatedSchedule]:
    """Read the JSON of ``to_json``. Raises ValueError, TypeError, KeyError or UserError for anything else."""
    if data.get("schema") != SCHEMA:
        raise UserError(f"schema {data.get('schema')!r}", f"this release reads schema {SCHEMA}")
    groups = tuple(NodeGroup.of(**group) for group in data["groups"])
    fleet = Fleet(groups, tuple(Outage(**outage) for outage in data["outages"]), tuple(data.get("nodes", ())))
    jobs = [Job(**{name: _value(name, value) for name, value in job.items()}) for job in data["jobs"]]
    return {str(name): _read(name, item, fleet, jobs) for name, item in data["policies"].items()}


def _plain(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults, except those in ``_APART``."""
    given = ((field, getattr(value, field.name)) for field in fields(value) if field.name not in _APART)
    return {field.name: _number(item) for field, item in given if item is not None and item != field.default}


def _number(value: Any) -> Any:
    """Return a value for JSON. Infinity and NaN, which JSON lacks, become words."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, Mapping):
        return {key: _number(item) for key, item in value.items()}
    return [_number(item) for item in value] if isinstance(value, tuple | list) else value


def _job(job: Job) -> dict[str, Any]:
    return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in _plain(job).items()}


def _value(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return frozenset(value) if name == "adapts" else tuple(map(_parsed, value))
    return _parsed(value)


def _parsed(value: Any) -> Any:
    """Invert ``_number``, with tuples for lists."""
    if isinstance(value, list):
        return tuple(map(_parsed, value))
    return float(value) if value in ("inf", "-inf", "nan") else value


def _simulated(simulated: SimulatedSchedule) -> dict[str, Any]:
    schedule = simulated.schedule
    return {
        "adapts": sorted(simulated.adapts),
        "knowledge": simulated.knowledge,
        "notes": list(simulated.notes),
        **({} if simulated.log is None else {"log": _log(simulated.log)}),
        **({} if simulated.ratios is None else {"ratios": dict(simulated.ratios)}),
        "settings": _plain(simulated.settings),
        "schedule": _plain(schedule),
        "outcomes": [{**_plain(outcome), "spans": list(map(_span, outcome.spans))} for outcome in schedule.outcomes],
    }


def _log(log: ReplayedLog) -> dict[str, Any]:
    return {**asdict(log), "waits": dict(log.waits)}


def _read_log(item: Mapping[str, Any]) -> ReplayedLog:
    return ReplayedLog(**{**item, "skipped": tuple(SkippedRow(**row) for row in item["skipped"])})


def _span(span: Span) -> list[Any]:
    return [span.start_s, span.end_s, span.device, span.placement, span.batch, span.reason, span.strategy]


def _read(name: str, item: Mapping[str, Any], fleet: Fleet, jobs: Sequence[Job]) -> SimulatedSchedule:
    outcomes = []
    for job, given in zip(jobs, item["outcomes"], strict=True):
        spans = [Span(start, end, device, _parsed(at), *rest) for start, end, device, at, *rest in given["spans"]]
        also = {key: _parsed(value) for key, value in given.items() if key not in ("spans", *_PAIRS)}
        also |= {key: [(time_s, text) for time_s, text in given.get(key, ())] for key in _PAIRS}
        outcomes.append(JobOutcome(job=job, spans=spans, **also))
    missing: dict[str, Any] = {"decision_s": (), "active": ()}
    rest = {key: _parsed(value) for key, value in item["schedule"].items()}
    return SimulatedSchedule(
        policy=name,
        schedule=ClusterSchedule(fleet=fleet, outcomes=tuple(outcomes), **{**missing, **rest}),
        settings=ClusterSettings(**{key: _parsed(value) for key, value in item["settings"].items()}),
        adapts=frozenset(item["adapts"]),
        knowledge=item["knowledge"],
        ratios=item.get("ratios"),
        notes=tuple(item["notes"]),
        log=_read_log(item["log"]) if "log" in item else None,
    )
