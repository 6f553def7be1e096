"""Screens of schedules: one, several compared, and the life of a job."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence

from paceline.planning.search.goal import money
from paceline.reporting.text.log_text import left_out_text, rows_used, skipped_rows, wait_pairs, wait_table
from paceline.reporting.text.screen import GAP, Block, Pair, Paragraph, Screen, Table, heading, item
from paceline.reporting.values import UNKNOWN, clean, count, number, percent, seconds
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.policies.registry import POLICIES
from paceline.scheduling.queues.unknown_names import IGNORED, LACKING
from paceline.scheduling.simulate.compare import Paired, best
from paceline.scheduling.simulate.metrics import UNFAIR, ScheduleMetrics
from paceline.scheduling.simulate.simulated import SimulatedSchedule
from paceline.scheduling.simulate.wait_reasons import JobHistory, Stretch

LONGEST = 5
"""Jobs that are listed because they waited longest."""
_KNOWS = {
    "online": "what jobs state and what each saw since it began",
    "measured": "the truth",
    "predicted": "what is predicted, corrected by what all jobs saw",
}
_FAIRNESS = {
    True: "estimated from the devices that it held; of a rigid job at most the time without later jobs",
    False: "from a simulation of the job alone under the same policy (Themis; over types as Sia)",
}


def definitions(simulated: SimulatedSchedule) -> tuple[str, ...]:
    """Explain the figures."""
    return (
        "Completion time: from a job's arrival to its end.",
        f"Fairness: completion time over that on an equal share of the devices, {_FAIRNESS[simulated.ratios is None]}; "
        f"above {UNFAIR:g} is unfair, if it lost more than {seconds(simulated.negligible_s)} (a round and a start).",
        "Devices are held from the start of a job's restart on. Energy is that of devices held, at most.",
    )


def fleet_text(fleet: Fleet) -> str:
    """Describe a fleet: ``6 x 4 T4 + 3 x 8 RTX 2080 Ti``, with racks in brackets after a type."""
    racks = [f" ({group.racks_text})" if group.racks_text else "" for group in fleet.groups]
    each = zip(fleet.groups, racks, strict=True)
    return " + ".join(f"{group.nodes} x {group.devices_per_node} {group.device}{rack}" for group, rack in each)


def what_text(simulated: SimulatedSchedule) -> str:
    """Describe the subject: ``160 jobs on 16 x 4 T4``."""
    return f"{count(len(simulated.schedule.outcomes), 'job')} on {fleet_text(simulated.schedule.fleet)}"


def schedule_screen(simulated: SimulatedSchedule, directory: str, with_skipped: bool = False) -> Screen:
    """Return the screen of a schedule's figures, and the jobs that waited longest.

    Args:
        directory: where it was saved; empty: the usual place.
        with_skipped: list the skipped rows of a log.
    """
    m = simulated.metrics
    late = "" if m.ended == m.jobs else f"{m.jobs - m.ended:,} of {m.jobs:,} jobs did not end."
    return Screen(
        title=f"{what_text(simulated)} under {simulated.policy}, simulated",
        answer=(
            *_figures(simulated),
            GAP,
            *skipped_rows(simulated.log, with_skipped),
            GAP,
            *_longest(simulated),
            GAP,
            *_removals(simulated),
            *_ask_why(simulated, directory),
        ),
        brief=f"{what_text(simulated)} under {simulated.policy}: {_completion(m)}, makespan {seconds(m.makespan_s)}"
        + left_out_text(simulated.log),
        why=(heading("It rests on:"), *map(item, (*basis(simulated), *simulated.notes, *definitions(simulated)))),
        why_holds="what is true of the jobs, settings, definitions",
        alarm=" ".join(
            filter(None, (late, *(note for note in simulated.notes if LACKING in note or note.startswith(IGNORED))))
        ),
    )


def _completion(m: ScheduleMetrics) -> str:
    return f"mean {seconds(m.mean_jct_s)}, median {seconds(m.median_jct_s)}, 99% within {seconds(m.p99_jct_s)}"


def _figures(simulated: SimulatedSchedule) -> Iterator[Block]:
    m = simulated.metrics
    yield from rows_used(simulated.log)
    yield Pair("completion", _completion(m))
    yield from wait_pairs(simulated)
    if m.deadlines:
        yield Pair("deadlines", f"{m.met:,} of {m.deadlines:,} kept")
    if m.removed:
        yield Pair("removed", f"{count(m.removed, 'job')} before the end; their reasons are below")
    yield Pair("makespan", seconds(m.makespan_s))
    yield Pair("devices", f"{number(m.device_hours_per_job)} device-hours a job; {percent(m.utilisation)} of all were held")
    yield Pair("restarts", f"{number(m.restarts_per_job)} a job")
    how = "estimated" if simulated.ratios is None else "each job simulated alone"
    yield Pair("fairness", f"worst {number(m.worst_fairness)}; {percent(m.unfair_share)} of jobs are unfair; {how}")
    yield Pair("worst wait", _worst_wait(m))
    yield Pair("energy", UNKNOWN if math.isnan(m.energy_kwh) else f"{number(m.energy_kwh)} kWh at most")
    yield Pair("costs", UNKNOWN if math.isnan(m.usd) else f"{money(m.usd)} for the devices held")
    yield Pair("decisions", f"{m.decisions:,}, median {seconds(m.decision_median_s)}, 99% within {seconds(m.decision_p99_s)}")


def _worst_wait(m: ScheduleMetrics) -> str:
    """Describe the longest wait relative to a job's time on devices."""
    if not m.worst_wait.name:
        return "none above a round and a start"
    name, waited, ran = clean(m.worst_wait.name, 24), seconds(m.worst_wait.waited_s), seconds(m.worst_wait.ran_s)
    return f"{name}: {waited} for {ran} on devices, {number(m.worst_wait.ratio)}x"


def _longest(simulated: SimulatedSchedule) -> Iterator[Block]:
    """Return a table of the jobs with the longest time without devices."""
    waits = waited_longest(simulated, LONGEST)
    if not waits:
        m = simulated.metrics
        yield Paragraph("No job waited." if m.ended == m.jobs else "No job that ended waited." if m.ended else "No job ended.")
        return
    rows = []
    for name, waited in waits:
        outcome = simulated.outcome(name)
        ran = sum(span.end_s - span.start_s for span in outcome.spans)
        rows.append((clean(name, 24), seconds(waited), seconds(ran), seconds(outcome.jct_s), f"{outcome.restarts}"))
    yield Table(("waited longest", "waited", "ran", "completion", "restarts"), rows, frozenset({0}))


def removed_rows(simulated: SimulatedSchedule, most: int) -> list[tuple[str, str, str]]:
    """Return rows with name, moment and reason of removed jobs, in the order of the trace, and the number of further ones."""
    removed = [outcome for outcome in simulated.schedule.outcomes if outcome.removed]
    rows = [
        (clean(o.job.name, 24), moment(math.nan if o.removed_s is None else o.removed_s), o.removed) for o in removed[:most]
    ]
    return [*rows, *([("...", "", f"{len(removed) - most:,} more; --json has all")] if len(removed) > most else [])]


def _removals(simulated: SimulatedSchedule) -> Iterator[Block]:
    if rows := removed_rows(simulated, LONGEST):
        yield heading("Removed before the end")
        yield from (item(f"{name}{f' at {at}' if at else ''}: {why}") for name, at, why in rows)
        yield GAP


def waited_longest(simulated: SimulatedSchedule, most: int) -> list[tuple[str, float]]:
    """Return the names of ended jobs that waited, with their seconds without devices, the longest first."""
    waits = []
    for outcome in simulated.schedule.outcomes:
        waited = outcome.jct_s - sum(span.end_s - span.start_s for span in outcome.spans)
        if waited > 1e-6:
            waits.append((outcome.job.name, waited))
    return sorted(waits, key=lambda wait: (-wait[1], wait[0]))[:most]


def _ask_why(simulated: SimulatedSchedule, directory: str, several: bool = False) -> Iterator[Block]:
    waits = waited_longest(simulated, 1)
    if waits:
        words = ["paceline", "schedule", "why", *([directory] if directory else []), waits[0][0]]
        yield Pair("deeper", shlex.join([*words, "--policy", simulated.policy] if several else words))


def basis(simulated: SimulatedSchedule) -> Iterator[str]:
    """Describe the policy's source and the settings."""
    s = simulated.settings
    if simulated.policy in POLICIES:
        yield f"{simulated.policy}: {POLICIES[simulated.policy].source}."
    yield f"The policy knows {_KNOWS[simulated.knowledge]} ({simulated.knowledge})."
    rounds = f"every {seconds(s.round_s)}" if s.round_s else "at every arrival, end and outage"
    yield f"Decisions {rounds}; a start or resize costs {seconds(s.restart_s)}; interference {percent(s.interference)}."


def compare_screen(
    simulated: Mapping[str, SimulatedSchedule], pairs: Sequence[Paired], directory: str, with_skipped: bool = False
) -> Screen:
    """Return the screen of several policies: a row each, then the paired differences with their intervals."""
    first = next(iter(simulated.values()))
    name = best(simulated)
    mean = seconds(simulated[name].metrics.mean_jct_s)
    fewer = any(one.metrics.ended < simulated[name].metrics.ended for one in simulated.values())
    among = " of those under which the most jobs ended" if fewer else ""
    return Screen(
        title=f"{what_text(first)}, {count(len(simulated), 'policy', 'policies')} on the same jobs, simulated",
        answer=(
            *rows_used(first.log),
            GAP,
            *skipped_rows(first.log, with_skipped),
            GAP,
            *_policies(simulated),
            GAP,
            *wait_table(simulated),
            GAP,
            *_pairs(simulated, pairs),
            GAP,
            *_ask_why(simulated[name], directory, several=True),
        ),
        brief="; ".join([f"{what_text(first)}: {name} is best in the mean with {mean}{among}", *_removed(simulated)]),
        why=(
            heading("It rests on:"),
            *map(
                item, (*dict.fromkeys(text for s in simulated.values() for text in (*basis(s), *s.notes)), *definitions(first))
            ),
        ),
        why_holds="what is true of the jobs, settings, definitions",
    )


def _policies(simulated: Mapping[str, SimulatedSchedule]) -> Iterator[Block]:
    """Return tables of the times of each policy, then of its costs."""
    every = [(name, one.metrics) for name, one in simulated.items()]
    times = [(n, f"{m.ended:,}", *map(seconds, (m.mean_jct_s, m.median_jct_s, m.p99_jct_s, m.makespan_s))) for n, m in every]
    yield Table(("completion", "jobs\nended", "mean", "median", "99% within", "makespan"), times, frozenset({0}))
    yield GAP
    costs = [
        (
            name,
            number(m.device_hours_per_job),
            number(m.restarts_per_job),
            percent(m.utilisation),
            number(m.worst_fairness),
            percent(m.unfair_share),
            f"{number(m.worst_wait.ratio)}x" if m.worst_wait.name else "none",
            seconds(m.decision_median_s),
        )
        for name, m in every
    ]
    heads = (
        "",
        "device-hours\na job",
        "restarts\na job",
        "held",
        "worst\nfairness",
        "unfair\njobs",
        "worst\nwait/run",
        "median\ndecision",
    )
    yield Table(heads, costs, frozenset({0}))


def _removed(simulated: Mapping[str, SimulatedSchedule]) -> Iterator[str]:
    """Describe how many jobs each policy removed, if any."""
    for name, one in simulated.items():
        if one.metrics.removed:
            yield f"{name} removed {one.metrics.removed:,} of {count(one.metrics.jobs, 'job')}"


def _pairs(simulated: Mapping[str, SimulatedSchedule], pairs: Sequence[Paired]) -> Iterator[Block]:
    for sentence in _removed(simulated):
        yield Paragraph(f"{sentence}; its completion times are of the jobs that ended, and no measure against the others.")
    if not pairs:
        return
    every = len(next(iter(simulated.values())).schedule.outcomes)
    together = ", ".join(f"{jobs:,}" for jobs in sorted({p.jobs for p in pairs}))
    which = f"{together} jobs" if all(p.jobs == every for p in pairs) else f"{together} of {every:,} jobs ended under both"
    yield heading(f"Mean completion time against {pairs[0].base}, job by job ({which})")
    heads = ("", "ratio", "difference", "95% interval", "jobs sooner", "verdict")
    yield Table(heads, list(map(_pair, pairs)), frozenset({0, 5}))


def _pair(p: Paired) -> tuple[str, ...]:
    if not p.jobs:
        return p.policy, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, p.verdict
    spread = f"{_signed(p.low_s)} to {_signed(p.high_s)}"
    return p.policy, f"{p.ratio:.3f}x", _signed(p.difference_s), spread, percent(p.sooner), p.verdict


def _signed(value: float) -> str:
    return f"{'-' if value < 0 else '+'}{seconds(abs(value))}"


def why_screen(answer: JobHistory) -> Screen:
    """Return the screen of a job's life: each wait and each set of devices with its reason."""
    outcome = answer.outcome
    open_end = "has not ended yet" if answer.goes_on else "never ended"
    ended = open_end if math.isnan(outcome.end_s) else f"ended {seconds(outcome.jct_s)} after its arrival"
    blocks: list[Block] = [
        Pair("asked for", answer.asked),
        Pair("arrived", f"{moment(outcome.job.arrival_s)} after the trace's start"),
        Pair("completion", f"{ended}; it waited {seconds(answer.waited_s)} of it, {count(outcome.restarts, 'restart')}"),
        GAP,
    ]
    for stretch in answer.stretches:
        blocks += _stretch(stretch)
    brief = f"{clean(outcome.job.name)} under {answer.policy}: {ended}, waited {seconds(answer.waited_s)}"
    return Screen(title=f"{clean(outcome.job.name)} under {answer.policy}", answer=tuple(blocks), brief=brief)


def _stretch(stretch: Stretch) -> Iterator[Block]:
    lasted = seconds(stretch.end_s - stretch.start_s)
    yield heading(f"{moment(stretch.start_s)}: {stretch.what}, {lasted}")
    yield from map(item, stretch.why)


def moment(value: float) -> str:
    """Format a time since the trace's start: ``1d 02:03:04``."""
    if not math.isfinite(value):
        return UNKNOWN
    days, rest = divmod(int(value), 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}d {clock}" if days else clock
