"""Parts of a screen about the log that a schedule replays: its rows, and the waits under its own scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline.reporting.text.screen import Block, Pair, Table, heading, item
from paceline.reporting.values import clean, count, seconds
from paceline.scheduling.simulate.replayed_log import ReplayedLog, WaitFigures
from paceline.scheduling.simulate.simulated import SimulatedSchedule

MOST_SKIPPED = 1000
"""Skipped rows of a log that an answer lists."""
WAIT_HEADS = ("first wait", "jobs", "mean", "median", "90% within")


def wait_pairs(simulated: SimulatedSchedule) -> Iterator[Block]:
    """Return the first waits, next to those in the log."""
    log = simulated.log
    if log is None or not log.waits:
        yield Pair("first wait", f"mean {seconds(simulated.metrics.mean_wait_s)}")
        return
    logged, own = log.both_waits(simulated.schedule.outcomes)
    few = "" if logged.jobs == simulated.metrics.jobs else f" ({count(logged.jobs, 'job')} whose wait the log states)"
    rounds = f"; starts wait for rounds of {seconds(simulated.settings.round_s)}" if simulated.settings.round_s else ""
    yield Pair("first wait", _wait_text(own) + few + rounds)
    yield Pair("your scheduler", f"{_wait_text(logged)}: the same waits in {log.file}")


def _wait_text(waits: WaitFigures) -> str:
    return f"mean {seconds(waits.mean_s)}, median {seconds(waits.median_s)}, 90% within {seconds(waits.p90_s)}"


def left_out_text(log: ReplayedLog | None) -> str:
    """Return how many rows of a log were left out, as the end of a sentence; empty if none."""
    return f"; {len(log.skipped):,} of {count(log.rows, 'row')} left out" if log is not None and log.skipped else ""


def rows_used(log: ReplayedLog | None) -> Iterator[Block]:
    """Return how many rows of a log became jobs, and why the others did not."""
    if log is None:
        return
    jobs = log.rows - len(log.skipped)
    if not log.skipped:
        yield Pair("log", f"{count(jobs, 'job')}, every row of {log.file}")
        return
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in log.reasons)
    yield Pair("log", f"{jobs:,} of {count(log.rows, 'row')} of {log.file}; left out: {reasons}; --skipped lists them")


def skipped_rows(log: ReplayedLog | None, wanted: bool) -> Iterator[Block]:
    """Return a list of the skipped rows, if wanted."""
    if log is None or not wanted:
        return
    yield heading("Rows left out" if log.skipped else "No row was left out")
    for row in log.skipped[:MOST_SKIPPED]:
        detail = f" ({clean(row.detail, 80)})" if row.detail else ""
        yield item(f"{clean(row.place, 80)}: {clean(row.name, 40) or 'a row'} {row.reason}{detail}")
    if len(log.skipped) > MOST_SKIPPED:
        yield item(f"{len(log.skipped) - MOST_SKIPPED:,} more; --json --skipped has all")


def wait_table(simulated: Mapping[str, SimulatedSchedule]) -> Iterator[Block]:
    """Yield a table of the first waits under each policy, below those in the log."""
    if rows := wait_rows(simulated):
        yield Table(WAIT_HEADS, rows, frozenset({0}))


def wait_rows(simulated: Mapping[str, SimulatedSchedule]) -> list[tuple[str, ...]]:
    """Return the rows of that table; empty if the jobs come from no log that states waits."""
    first = next(iter(simulated.values()))
    if first.log is None or not first.log.waits:
        return []
    rows = [("your scheduler now", first.log.both_waits(first.schedule.outcomes)[0])]
    rows += [(name, one.log.both_waits(one.schedule.outcomes)[1]) for name, one in simulated.items() if one.log]
    return [(name, f"{w.jobs:,}", *map(seconds, (w.mean_s, w.median_s, w.p90_s))) for name, w in rows]
