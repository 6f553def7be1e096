"""Live schedule in the form of a simulated one, so that one report shows both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.errors import UserError
from paceline.scheduling.executors.records import text_of
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.live.journal import NAME, JournalReader, LiveRow, LiveSpan
from paceline.scheduling.live.nodes import LiveNodes
from paceline.scheduling.live.policy import core_job
from paceline.scheduling.policies.registry import POLICIES
from paceline.scheduling.simulate.schedule import ClusterSchedule, ClusterSettings, JobOutcome, Span
from paceline.scheduling.simulate.simulated import SimulatedSchedule

_RUN = "to run on "
"""Start of the event text of a decision that gives a job devices."""


def live_schedule(
    journal: JournalReader,
    nodes: Mapping[str, int],
    policy: str,
    round_s: float,
    kinds: LiveNodes | None = None,
    now_s: float | None = None,
) -> SimulatedSchedule:
    """Return the schedule in a journal, with times in seconds after the first arrival.

    Args:
        nodes: devices of each node that is up. A node that jobs used and that no longer exists counts as large as the largest.
        policy: name of the policy. ``round_s``: seconds between its decisions.
        kinds: device types of the nodes; None: those that the runner recorded.
        now_s: seconds of the epoch at which open spans end; None: at the last change of their job.

    Raises:
        UserError: a journal without jobs.
    """
    rows = journal.rows()
    if not rows:
        raise UserError(f"{journal.path} has no jobs", "run paceline schedule live first")
    start_s = min(row.arrival_s for row in rows.values())
    spans = {name: journal.spans(name) for name in rows}
    kinds = kinds or noted_nodes(journal)
    fleet, names = _fleet(nodes, spans, kinds)
    number = {name: place for place, name in enumerate(names)}
    said = _policy_reasons(journal)
    outcomes = tuple(
        JobOutcome(
            job=core_job(row, start_s),
            end_s=row.since - start_s if row.phase == "done" else math.nan,
            restarts=max(row.starts - 1, 0),
            spans=[
                Span(
                    span.start_s - start_s,
                    (span.end_s if span.end_s is not None else max(now_s or row.since, span.start_s)) - start_s,
                    fleet.types[int(fleet.node_types[number[next(iter(span.placement))]])],
                    tuple((number[node], devices) for node, devices in span.placement.items()),
                    reason=span.reason or _reason(said.get(row.name, ()), span),
                )
                for span in spans[row.name]
            ],
            removed=row.reason if row.phase == "failed" and row.is_over else "",
            removed_s=row.since - start_s if row.phase == "failed" and row.is_over else math.nan,
        )
        for row in rows.values()
    )
    until_s = None if now_s is None or all(row.is_over for row in rows.values()) else now_s - start_s
    schedule = ClusterSchedule(fleet=fleet, outcomes=outcomes, decision_s=(), active=_active(rows, start_s), until_s=until_s)
    return SimulatedSchedule(
        policy=policy,
        schedule=schedule,
        settings=ClusterSettings(round_s=round_s),
        adapts=POLICIES[policy].adapts if policy in POLICIES else frozenset({"devices"}),
        notes=("These jobs ran for real.",),
    )


def newer_journal(directory: Path, than: Path) -> Path | None:
    """Return the journal of a directory if it is newer than a file or the file is missing; else None."""
    journal = directory / NAME
    if not journal.is_file():
        return None
    log = journal.with_name(f"{NAME}-wal")  # what is not yet in the journal itself; a reader leaves an empty one
    written_s = max(
        path.stat().st_mtime for path in (journal, log) if path == journal or (path.exists() and path.stat().st_size)
    )
    return journal if not than.exists() or written_s >= than.stat().st_mtime else None


def schedule_so_far(path: Path, now_s: float) -> SimulatedSchedule:
    """Return the schedule of a journal up to now (seconds of the epoch), while a runner may be writing it.

    Raises:
        UserError: the journal cannot be read, or the first round has not happened.
    """
    with JournalReader(path) as journal:
        facts = journal.facts()
        if "nodes" not in facts and not any(map(journal.spans, journal.rows())):
            raise UserError(f"no job of {path} has run, and no round was made yet", "ask again when one was")
        policy, round_s = str(facts.get("policy", "unknown policy")), float(facts.get("round_s", 0.0))
        return live_schedule(journal, facts.get("nodes", {}), policy, round_s, now_s=now_s)


def noted_nodes(journal: JournalReader) -> LiveNodes:
    """Return the device types of the nodes, as the runner recorded them."""
    return LiveNodes.noted(journal.facts().get("devices", ()))


def node_names(nodes: Mapping[str, int], spans: Mapping[str, list[LiveSpan]], kinds: LiveNodes) -> list[str]:
    """Return the names of the nodes by number: those that are up and those that jobs have used."""
    every = {*nodes, *(node for each in spans.values() for span in each for node in span.placement)}
    return [name for members in kinds.by_device(every).values() for name in members]


def _fleet(nodes: Mapping[str, int], spans: Mapping[str, list[LiveSpan]], kinds: LiveNodes) -> tuple[Fleet, list[str]]:
    """Return the fleet of these nodes, with their names. Nodes of a type, also absent ones, count as large as the largest."""
    names = node_names(nodes, spans, kinds)
    sizes = dict.fromkeys(names, 0) | dict(nodes)
    for each in spans.values():
        for span in each:
            for node, devices in span.placement.items():
                sizes[node] = max(sizes[node], devices)
    largest = {name: max(map(sizes.__getitem__, of)) for of in kinds.by_device(names).values() for name in of}
    fleet, names = kinds.fleet(largest)
    return replace(fleet, names=tuple(names)), names


def _policy_reasons(journal: JournalReader) -> dict[str, list[tuple[float, set[str], str]]]:
    """Return the reasons of the policy by job, in order: time, placement as words, reason."""
    said: dict[str, list[tuple[float, set[str], str]]] = {}
    for at_s, name, what in journal.events():
        words, _, reason = what.partition(": ")
        if reason and words.startswith(_RUN):
            said.setdefault(name, []).append((at_s, set(words.removeprefix(_RUN).split()), reason))
    return said


def _reason(said: Sequence[tuple[float, set[str], str]], span: LiveSpan) -> str:
    """Return the last reason for this placement before the span ended; empty if there is none."""
    words, end_s = set(text_of(span.placement).split()), math.inf if span.end_s is None else span.end_s
    return next((reason for at_s, placement, reason in reversed(said) if at_s <= end_s and placement == words), "")


def _active(rows: Mapping[str, LiveRow], start_s: float) -> tuple[tuple[float, int], ...]:
    """Return the number of jobs present after each arrival and end."""
    changes = [(row.arrival_s - start_s, 1) for row in rows.values()]
    changes += [(row.since - start_s, -1) for row in rows.values() if row.is_over]
    active, present = [], 0
    for moment, change in sorted(changes):
        present += change
        active.append((moment, present))
    return tuple(active)
