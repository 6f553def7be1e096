"""A journal as a runner leaves it on its way: jobs of every state, on four nodes of two devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from live_jobs import script, training
from paceline.scheduling.live.journal import NAME, REMOVED, Journal, LiveRow, LiveSpan, Report

ARRIVALS = {"digits": 0, "grows": 60, "theirs": 100, "broken": 120, "flat": 130, "waits": 500, "later": 1200}
"""Seconds after the first; ``written`` is 900 s after it."""


def written(base: Path, now_s: float, is_over: bool = False) -> Path:
    """The journal's file in ``base``; ``is_over``: with every job at its end."""
    start_s = now_s - 900
    with Journal(base / NAME) as journal:
        nodes = {f"h{number}": 2 for number in range(4)}
        journal.remember(policy="las", executor="slurm", round_s=10.0, nodes=nodes, decided_s=now_s - 4)
        for name, after_s in ARRIVALS.items():
            is_rigid = name in ("theirs", "broken")
            job = script(base, "true", name, min_devices=2, max_devices=2) if is_rigid else training(base, name, epochs=10)
            journal.add(job, start_s + after_s)
        for name, begins, ends, placement in (
            ("digits", 10, 400, {"h0": 2}),
            ("grows", 70, 500, {"h1": 2}),
            ("grows", 520, 0, {"h1": 2, "h2": 2}),
            ("theirs", 110, 0, {"h3": 2}),
            ("broken", 130, 140, {"h2": 2}),
            ("flat", 420, 800, {"h0": 2}),
        ):
            journal.begin_span(name, LiveSpan(start_s + begins, None, placement))
            if ends:
                journal.end_span(name, start_s + ends)
        rows = journal.rows()
        reached = {"epoch": 4.0, "step": 80.0, "samples_per_s": 20.0}
        changed = [
            replace(rows["digits"], phase="done", since=start_s + 400, is_over=True, expected_end_s=start_s + 380),
            _running(
                rows["grows"],
                start_s + 520,
                {"h1": 2, "h2": 2},
                progress=reached,
                reported_s=start_s + 880,
                reports=(Report({"h0": 2}, 12.0), Report({"h0": 2, "h1": 2}, 20.0)),
            ),
            _running(rows["theirs"], start_s + 110, {"h3": 2}),
            replace(
                rows["broken"], phase="failed", since=start_s + 140, is_over=True, reason="it ended with code 1", failures=3
            ),
            replace(rows["flat"], phase="failed", since=start_s + 800, is_over=True, reason=f"{REMOVED}it learns no more"),
        ]
        journal.save(changed, [("grows", "to run on h1:2 h2:2: more room"), ("waits", "to wait")])
        if is_over:
            rows = journal.rows()
            journal.save([replace(row, phase="done", since=now_s, is_over=True) for row in rows.values() if not row.is_over])
            for name in rows:
                journal.end_span(name, now_s)
    return base / NAME


def _running(row: LiveRow, since: float, target: dict[str, int], **also: object) -> LiveRow:
    return replace(row, phase="running", since=since, target=target, starts=1, **also)  # type: ignore[arg-type]
