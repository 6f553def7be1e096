"""Screen of ``paceline schedule start``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from paceline.reporting.text.screen import GAP, Block, Pair, Paragraph, Screen, Table, heading, item
from paceline.reporting.values import clean, count
from paceline.scheduling.queues.slurm_settings import SlurmSettings
from paceline.scheduling.starts.forecast import HIGH, LOW, StartForecast
from paceline.scheduling.starts.reason_codes import held_text
from paceline.scheduling.starts.sooner import Sooner
from paceline.scheduling.starts.start_answer import StartAnswer
from paceline.scheduling.traces.record import LoggedJob, SkippedRow, singular
from paceline.units import format_seconds

MOST = 20
"""Jobs of the table; ``--json`` has all."""
MOST_SKIPPED = 1000
"""Rows left out that an answer lists."""
FEW_SKIPPED = 3
"""Rows left out for one reason that the plain answer names."""
FEW_PREEMPTED = 5
"""Jobs that start by preemption, or are preempted, that the plain answer names."""
FEW_HELD, MOST_REASONS = 3, 10
"""Jobs of a reason, and reasons, that the plain answer names of those that are not up to the scheduler."""
NEVER = "not foreseen"
FEW_CHECKED = 10
"""Fewest past starts of which a share is told."""


def start_screen(answer: StartAnswer, with_skipped: bool = False) -> Screen:
    """Return the screen of a queue's forecast, or of one job's.

    Args:
        with_skipped: list the rows that were left out.
    """
    queue = answer.queue
    waiting, running = len(queue.waiting), len(queue.running)
    title = f"{count(waiting, 'job')} wait{'s' * (waiting == 1)} and {running} run{'s' * (running == 1)}"
    title += f" on {devices_text(answer)}" if queue.nodes.types else ""
    title += f" under {queue.scheduler.capitalize()}" + (
        f", {answer.moment(0.0).replace('T', ' ')}" if answer.moment(0.0) else ""
    )
    blocks = list(_one(answer)) if answer.asked and answer.jobs else list(_table(answer))
    first = answer.jobs[0] if answer.jobs else None
    brief = f"{clean(first.job.name, 40)} starts {when_text(first)}, {range_text(first)}" if first else "no job waits"
    why = [
        Pair("futures", f"{answer.futures}, seed {answer.seed}, {answer.seconds:.1f} s"),
        *_sampling(answer),
        *map(item, answer.notes),
        GAP,
        *_why(answer),
    ]
    return Screen(
        title=title,
        answer=(*blocks, *_checked(answer), *_preemptions(answer), *_held(answer), *_left_out(answer, with_skipped)),
        brief=brief,
        why=tuple(why),
        why_holds="what the forecast assumes",
        notes=answer.notes,
    )


def _why(answer: StartAnswer) -> Iterator[Block]:
    """Yield how this answer was computed."""
    yield heading("How it is computed")
    yield item("Each future draws the length of every job, given how long it has run, and jobs still to come from the history.")
    if answer.checked[1]:
        yield item("The range is stretched so that 80 % of past starts, forecast when these jobs were submitted, fall inside.")
    yield from map(item, _rule(answer))
    yield item("Jobs that the scheduler holds back for a limit, a queue, a node or another job are set apart, without a time.")
    yield item("Failing nodes and reservations of administrators are not simulated.")


def _rule(answer: StartAnswer) -> tuple[str, ...]:
    """Return sentences on the rule by which jobs start."""
    scheduler, cluster = answer.queue.scheduler, answer.queue.cluster
    if scheduler == "ray":
        return ("Ray: by submission; whatever fits the devices starts.",)
    if scheduler != "slurm":
        return (f"{scheduler.capitalize()}: its policy with the settings of its queues, as in schedule.",)
    later = "A later job starts where it delays no reservation, by stated limits."
    if cluster is None:
        return (
            f"Slurm: by printed priority, then submission. {later}",
            "Without --queues its fair share and preemption are not simulated.",
        )
    settings = cluster.settings
    if isinstance(settings, SlurmSettings) and not settings.multifactor:
        return (f"Slurm: its policy with the settings of --queues, which have no factors: by printed priority. {later}",)
    return (
        f"Slurm: its policy with the settings of --queues. Priorities are computed from their factors as time passes. {later}",
    )


def _one(answer: StartAnswer) -> Iterator[Block]:
    """Yield the answer for one job."""
    forecast = answer.jobs[0]
    at, until = answer.moment(forecast.start()), answer.moment(forecast.end())
    yield Pair("starts", f"{when_text(forecast)} ({range_text(forecast)}){_at(at)}")
    yield Pair("ends", f"{_in(forecast.end())} ({range_text(forecast, end=True)}){_at(until)}")
    length = format_seconds(float(sorted(forecast.length_s.tolist())[len(forecast.length_s) // 2]))
    limit = f", limit {format_seconds(forecast.job.limit_s)}" if forecast.job.limit_s else ""
    yield Pair("length", f"{length}, from {forecast.source}{limit}")
    yield GAP
    yield heading("Why it waits")
    for sentence in answer.reasons.get(forecast.job.name, ()):
        yield item(clean(sentence, 300))
    if answer.sooner:
        yield GAP
        yield heading("It would start sooner with")
        rows = [_sooner(each) for each in answer.sooner]
        yield Table(("change", "starts", "80 % range", "ends"), rows, frozenset({0}), [each.remark for each in answer.sooner])


def _sooner(each: Sooner) -> tuple[str, str, str, str]:
    return each.change, when_text(each.forecast), range_text(each.forecast), _in(each.forecast.end())


def _table(answer: StartAnswer) -> Iterator[Block]:
    if not answer.jobs:
        yield Paragraph("No job waits for devices.")
        return
    rows = [
        (
            clean(forecast.job.name, 24),
            clean(forecast.job.user, 16),
            asked_text(forecast.job),
            when_text(forecast),
            range_text(forecast),
            _in(forecast.end()),
        )
        for forecast in answer.jobs[:MOST]
    ]
    yield Table(("job", owner_head(answer), "devices", "starts", "80 % range", "ends"), rows, frozenset({0, 1}))
    if len(answer.jobs) > MOST:
        yield Paragraph(f"{len(answer.jobs) - MOST:,} more jobs: --json, or --job NAME for one with its reasons.")
    else:
        yield Paragraph("--job NAME: why one waits, and what would start sooner.")


def _checked(answer: StartAnswer) -> Iterator[Block]:
    """Yield where the ranges are from."""
    inside, checked = answer.checked
    if not answer.jobs:
        return
    if answer.asked:
        yield GAP
    if checked >= FEW_CHECKED:
        yield Paragraph(
            f"80 % range, checked on {checked} past starts of this queue: {100 * inside / checked:.0f} % fell inside."
        )
    else:
        yield Paragraph("80 % range, from simulated lengths alone: not checked on past starts of this queue.")


def _preemptions(answer: StartAnswer) -> Iterator[Block]:
    """Yield the jobs that start by preemption, and the running and waiting ones that lose their devices."""
    queue, found = answer.queue, answer.preemptions
    starters = [] if answer.asked else found.starters(forecast.job for forecast in answer.jobs)
    stopped = found.stopped((*queue.running, *(() if answer.asked else queue.waiting)))
    if not starters and not stopped:
        return
    yield GAP
    yield heading("Preemption, until these jobs have ended")
    for sentences in (starters, stopped):
        for sentence in sentences[:FEW_PREEMPTED]:
            yield item(clean(sentence, 200))
        if len(sentences) > FEW_PREEMPTED:
            yield item(f"and {len(sentences) - FEW_PREEMPTED:,} more: --json")


def _held(answer: StartAnswer) -> Iterator[Block]:
    held = answer.queue.held
    if not held:
        return
    yield GAP
    yield heading(f"{count(len(held), 'job')} not up to the scheduler")
    groups: dict[str, list[str]] = {}
    for job in held:
        groups.setdefault(held_text(job), []).append(clean(job.name, 40))
    for text, names in list(groups.items())[:MOST_REASONS]:
        more = f" and {len(names) - FEW_HELD:,} more" if len(names) > FEW_HELD else ""
        yield item(f"{', '.join(names[:FEW_HELD])}{more}: {clean(text, 200)}")
    if len(groups) > MOST_REASONS:
        rest = sum(len(names) for names in list(groups.values())[MOST_REASONS:])
        yield item(f"{rest:,} more for {len(groups) - MOST_REASONS:,} other reasons: --json")


def _left_out(answer: StartAnswer, listed: bool) -> Iterator[Block]:
    """Yield remarks on the file, and how many rows were left out for which reason; each row if they are ``listed``."""
    for sentence in answer.queue.remarks:
        yield GAP
        yield Paragraph(clean(sentence, 300))
    skipped = answer.queue.skipped
    if not skipped:
        return
    yield GAP
    yield heading(f"{count(len(skipped), 'row')} left out" + ("" if listed else " (--skipped lists them)"))
    if not listed:
        for reason, number in Counter(row.reason for row in skipped).items():
            few = [_skipped(row) for row in skipped if row.reason == reason] if number <= FEW_SKIPPED else []
            yield from map(item, few or [f"{number:,} {clean(reason, 120)}"])
        return
    for row in skipped[:MOST_SKIPPED]:
        place = f"{clean(row.place, 80)}: " if row.place else ""
        yield item(f"{place}{_skipped(row)}")
    if len(skipped) > MOST_SKIPPED:
        yield item(f"{len(skipped) - MOST_SKIPPED:,} more; --json has all")


def _skipped(row: SkippedRow) -> str:
    """Return what is wrong with a row that was left out."""
    detail = f" ({clean(row.detail, 80)})" if row.detail else ""
    return f"{clean(row.name, 40) or 'a row'} {clean(singular(row.reason), 120)}{detail}"


def _sampling(answer: StartAnswer) -> Iterator[Block]:
    """Yield how well the drawn futures determine the medians."""
    errors = [error for forecast in answer.jobs if math.isfinite(error := forecast.sampling_error())]
    if errors and max(errors) >= 1:
        text = format_seconds(max(errors))
        yield item(f"The number of futures makes the median starts uncertain by up to {text} (one standard error).")


def owner_head(answer: StartAnswer) -> str:
    """Return the head of the column of owners, which are namespaces where no job states its user."""
    spaced = [forecast.job for forecast in answer.jobs if "/" in forecast.job.name]
    same = all(job.user == job.name.partition("/")[0] for job in spaced)
    return "namespace" if spaced and same and len(spaced) == len(answer.jobs) else "owner"


def asked_text(job: LoggedJob) -> str:
    """Return the devices that a job asks for. MIG slices say their profile."""
    return f"{job.devices} x {job.profile}" if job.profile else str(job.devices)


def devices_text(answer: StartAnswer) -> str:
    """Return the devices of the cluster in words. MIG slices say their types."""
    nodes = answer.queue.nodes
    return f"{count(nodes.total, 'slice')} {', '.join(nodes.slices)}" if nodes.slices else count(nodes.total, "device")


def range_text(forecast: StartForecast, end: bool = False) -> str:
    """Return the 80 % range of a start or an end."""
    low, high = (forecast.end(share) if end else forecast.start(share) for share in (LOW, HIGH))
    if not math.isfinite(low):
        return NEVER
    if high < 1:
        return "now"
    last = format_seconds(high) if math.isfinite(high) else "later than foreseen"
    return f"{_short(low)} to {last}"


def _short(value: float) -> str:
    return "now" if value < 1 else format_seconds(value)


def when_text(forecast: StartForecast) -> str:
    """Return the median start in words."""
    start = forecast.start()
    return "now" if start < 1 else _in(start)


def _in(value: float) -> str:
    return f"in {format_seconds(value)}" if math.isfinite(value) else NEVER


def _at(moment: str) -> str:
    return f", about {moment.replace('T', ' ')[:16]}" if moment else ""
