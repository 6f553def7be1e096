"""What became of jobs that ran for real, in the form of a simulated schedule: the same report shows both, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping

from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.journal import JournalReader, LiveRow, LiveSpan
from paceline.scheduling.live_nodes import LiveNodes
from paceline.scheduling.live_policy import core_job
from paceline.scheduling.policies.registry import POLICIES
from paceline.scheduling.schedule import Outcome, Schedule, Settings, Span
from paceline.scheduling.simulated import Simulated


def live_schedule(
    journal: JournalReader,
    nodes: Mapping[str, int],
    policy: str,
    round_s: float,
    kinds: LiveNodes | None = None,
    now_s: float | None = None,
) -> Simulated:
    """The schedule that a journal has, times in seconds after its first job's arrival.

    Args:
        nodes: devices of each node that is up; one that jobs have run on and that is gone counts as large as the largest.
        policy: its name. ``round_s``: seconds between its decisions. ``kinds``: which devices the nodes have; by
            default those that the runner noted.
        now_s: seconds of the epoch up to which spans last that have no end; by default their job's last change.

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
    outcomes = tuple(
        Outcome(
            job=core_job(row, start_s),
            end_s=row.since - start_s if row.phase == "done" else math.nan,
            restarts=max(row.starts - 1, 0),
            spans=[
                Span(
                    span.start_s - start_s,
                    (span.end_s if span.end_s is not None else max(now_s or row.since, span.start_s)) - start_s,
                    fleet.types[int(fleet.node_types[number[next(iter(span.placement))]])],
                    tuple((number[node], devices) for node, devices in span.placement.items()),
                    reason=span.reason,
                )
                for span in spans[row.name]
            ],
            removed=row.reason if row.phase == "failed" and row.is_over else "",
            removed_s=row.since - start_s if row.phase == "failed" and row.is_over else math.nan,
        )
        for row in rows.values()
    )
    schedule = Schedule(fleet=fleet, outcomes=outcomes, decision_s=(), active=_active(rows, start_s))
    return Simulated(
        policy=policy,
        schedule=schedule,
        settings=Settings(round_s=round_s),
        adapts=POLICIES[policy].adapts if policy in POLICIES else frozenset({"devices"}),
        notes=("These jobs ran for real.",),
    )


def noted_nodes(journal: JournalReader) -> LiveNodes:
    """The devices of the nodes, as the runner noted them."""
    return LiveNodes.noted(journal.facts().get("devices", ()))


def node_names(nodes: Mapping[str, int], spans: Mapping[str, list[LiveSpan]], kinds: LiveNodes) -> list[str]:
    """The nodes of the schedule in the order of their numbers: those that are up, and those that jobs have run on."""
    every = {*nodes, *(node for each in spans.values() for span in each for node in span.placement)}
    return [name for members in kinds.by_device(every).values() for name in members]


def _fleet(nodes: Mapping[str, int], spans: Mapping[str, list[LiveSpan]], kinds: LiveNodes) -> tuple[Fleet, list[str]]:
    """Nodes of a type count as large as its largest, and so does one that is gone."""
    names = node_names(nodes, spans, kinds)
    sizes = dict.fromkeys(names, 0) | dict(nodes)
    for each in spans.values():
        for span in each:
            for node, devices in span.placement.items():
                sizes[node] = max(sizes[node], devices)
    largest = {name: max(map(sizes.__getitem__, of)) for of in kinds.by_device(names).values() for name in of}
    return kinds.fleet(largest)


def _active(rows: Mapping[str, LiveRow], start_s: float) -> tuple[tuple[float, int], ...]:
    """How many jobs were there, at each arrival and end."""
    changes = [(row.arrival_s - start_s, 1) for row in rows.values()]
    changes += [(row.since - start_s, -1) for row in rows.values() if row.is_over]
    active, present = [], 0
    for moment, change in sorted(changes):
        present += change
        active.append((moment, present))
    return tuple(active)


__all__ = ["live_schedule", "node_names", "noted_nodes"]
