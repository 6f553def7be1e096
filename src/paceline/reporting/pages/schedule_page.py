"""Page of simulated schedules as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paceline.reporting.figures import schedule_figures as figures
from paceline.reporting.pages.answer_page import HINT, Page, Section, render
from paceline.reporting.text.log_text import WAIT_HEADS, left_out_text, wait_rows
from paceline.reporting.text.schedule_text import (
    basis,
    definitions,
    fleet_text,
    moment,
    removed_rows,
    waited_longest,
    what_text,
)
from paceline.reporting.values import UNKNOWN, clean, number, percent, seconds
from paceline.scheduling.simulate.compare import FEWEST, Paired, compare
from paceline.scheduling.simulate.compare import best as best_of
from paceline.scheduling.simulate.simulated import SimulatedSchedule
from paceline.scheduling.simulate.wait_reasons import why

EXPLAINED = 12
"""Jobs whose life is told, those that waited longest."""
REMOVED = 100
"""Jobs that were removed and are listed."""
STRETCHES = 6
"""Waits and sets of devices of each."""


def render_schedules(simulated: Mapping[str, SimulatedSchedule], seed: int = 0) -> str:
    """Render the page as HTML text. Equal schedules give equal bytes.

    Args:
        seed: seed of the confidence intervals.
    """
    return render(schedules_page(simulated, seed))


def schedules_page(simulated: Mapping[str, SimulatedSchedule], seed: int = 0) -> Page:
    """Return the page of one schedule, or of several policies on the same jobs with figures of the best policy by mean."""
    pairs = compare(simulated, seed)
    best = simulated[best_of(simulated)]
    names = ", ".join(simulated)
    page = Page("schedule", what_text(best), f"simulated under {names}", list(_findings(simulated, pairs)))
    page.ranges = "Intervals hold 95 %." if pairs else ""
    for name, one in simulated.items():
        m = one.metrics
        page.card(f"{name}: mean completion", seconds(m.mean_jct_s), f"99% within {seconds(m.p99_jct_s)}")
    picture, left_out = figures.gantt(best.schedule)
    of_best = f" under {best.policy}" if len(simulated) > 1 else ""
    page.sections += [
        *_comparison(simulated, pairs),
        Section("Figures", heads=_HEADS, rows=[_row(one) for one in simulated.values()]),
        *_waits(simulated),
        Section("Completion times", pictures=[p for p in [figures.completion_times(simulated)] if p], wide=True),
        Section(f"Nodes over time{of_best}", left_out or HINT, pictures=[picture], wide=True),
        Section(
            f"Devices held by type{of_best}",
            fleet_text(best.schedule.fleet),
            pictures=[figures.held_by_type(best.schedule)],
            wide=True,
        ),
        Section(f"Queue{of_best}", pictures=[figures.queue(best.schedule)], wide=True),
        *_removals(best),
        *_explained(best),
        Section("It rests on", items=list(dict.fromkeys(_grounds(simulated)))),
    ]
    return page


def _findings(simulated: Mapping[str, SimulatedSchedule], pairs: Sequence[Paired]) -> Iterator[str]:
    for pair in pairs:
        if not pair.jobs:
            yield f"No job ended under both {pair.policy} and {pair.base}."
            continue
        times = f"{number(pair.ratio)} times that of {pair.base} ({number(pair.ratio_low)} to {number(pair.ratio_high)})"
        why = "" if pair.settled else f", which settles nothing{': too few jobs' if pair.jobs < FEWEST else ''}"
        ended = f"; {pair.fewer:,} fewer jobs ended under it" if pair.fewer > 0 else ""
        yield f"{pair.policy}: mean completion time {times}{why}{ended}."
    for name, one in simulated.items():
        m = one.metrics
        if m.ended < m.jobs:
            removed = f"; the policy removed {m.removed:,}" if m.removed else ""
            yield f"{name}: {m.jobs - m.ended:,} of {m.jobs:,} jobs did not end{removed}."


def _comparison(simulated: Mapping[str, SimulatedSchedule], pairs: Sequence[Paired]) -> list[Section]:
    picture = figures.comparison(pairs)
    if not picture:
        return []
    every = len(next(iter(simulated.values())).schedule.outcomes)
    together = " and ".join(f"{jobs:,}" for jobs in sorted({pair.jobs for pair in pairs}))
    text = f"Jobs that ended under both, {together} of {every:,}; 95 % intervals from these, drawn again and again."
    return [Section("Policies compared", text, pictures=[picture], wide=True)]


def _waits(simulated: Mapping[str, SimulatedSchedule]) -> list[Section]:
    """Return the waits under each policy and in the log, if the jobs come from one."""
    log, rows = next(iter(simulated.values())).log, wait_rows(simulated)
    if log is None or not rows:
        return []
    text = f"Waits of the jobs of {log.file} from their arrival to their first device{left_out_text(log)}."
    return [Section("Your scheduler now", text, heads=list(WAIT_HEADS), rows=[list(row) for row in rows])]


_HEADS = (
    *(
        "policy",
        "jobs ended",
        "mean",
        "median",
        "99% within",
        "makespan",
        "device-hours a job",
        "restarts a job",
        "devices held",
    ),
    *("worst fairness", "unfair jobs", "worst wait/run", "energy, at most", "costs", "median decision", "99% of decisions"),
)


def _row(one: SimulatedSchedule) -> list[str]:
    m = one.metrics
    return [
        one.policy,
        f"{m.ended:,}",
        *map(seconds, (m.mean_jct_s, m.median_jct_s, m.p99_jct_s, m.makespan_s)),
        number(m.device_hours_per_job),
        number(m.restarts_per_job),
        percent(m.utilisation),
        number(m.worst_fairness),
        percent(m.unfair_share),
        f"{number(m.worst_wait.ratio)}x" if m.worst_wait.name else "none",
        f"{number(m.energy_kwh)} kWh" if m.energy_kwh == m.energy_kwh else UNKNOWN,
        f"${m.usd:,.2f}" if m.usd == m.usd else UNKNOWN,
        seconds(m.decision_median_s),
        seconds(m.decision_p99_s),
    ]


def _removals(simulated: SimulatedSchedule) -> list[Section]:
    rows = removed_rows(simulated, REMOVED)
    text = f"Jobs that left before their end under {simulated.policy}."
    return [Section("Removed", text, heads=["job", "at", "why"], rows=rows)] if rows else []


def _explained(simulated: SimulatedSchedule) -> list[Section]:
    """Return the lives of the jobs that waited longest, one row per period."""
    rows = []
    for name, _ in waited_longest(simulated, EXPLAINED):
        stretches = why(simulated, name).stretches
        for stretch in stretches[:STRETCHES]:
            lasted, what = seconds(stretch.end_s - stretch.start_s), clean(stretch.what.removeprefix("on "), 90)
            rows.append(
                [
                    clean(name, 24),
                    moment(stretch.start_s),
                    lasted,
                    what,
                    " ".join(stretch.why),
                ]
            )
        if len(stretches) > STRETCHES:
            rows.append(
                [clean(name, 24), "", "", f"{len(stretches) - STRETCHES} more", "paceline schedule why tells all of them."]
            )
    if not rows:
        return []
    text = f"The jobs that waited longest under {simulated.policy}."
    return [Section("Why they waited", text, heads=["job", "from", "for", "devices", "why"], rows=rows)]


def _grounds(simulated: Mapping[str, SimulatedSchedule]) -> Iterator[str]:
    for one in simulated.values():
        yield from basis(one)
        yield from one.notes
    yield from definitions(next(iter(simulated.values())))
