"""Page of a live schedule at this moment: its jobs, its nodes over time, its queue, and the latest events."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from paceline.reporting.figures import schedule_figures as figures
from paceline.reporting.pages.answer_page import HINT, Page, Section
from paceline.reporting.values import UNKNOWN, clean, count, percent, seconds
from paceline.scheduling.live.view import JobNow, LiveView

SINCE = "the first arrival"


def live_page(view: LiveView) -> Page:
    """Return the page of a live schedule."""
    page = Page("live schedule", f"{count(len(view.jobs), 'job')} under {view.policy}", _subtitle(view), list(_findings(view)))
    devices = sum(view.nodes.values())
    share = f"; {percent(view.held / devices)}" if devices else ""
    running, waiting = _jobs_in(view, "running"), _jobs_in(view, "waits", "starts", "saves and stops")
    done, over = _jobs_in(view, "done"), _jobs_in(view, "failed", "removed")
    page.card("running", f"{len(running)}", f"{view.held} of {count(devices, 'device')} held{share}")
    longest = max(waiting, key=lambda job: job.waited_s, default=None)
    page.card("waiting", f"{len(waiting)}", f"{clean(longest.name, 24)} for {seconds(longest.waited_s)}" if longest else "")
    mean = f"mean completion {seconds(float(np.mean([job.achieved_s for job in done])))}" if done else ""
    page.card("done", f"{len(done)}", mean)
    page.card("failed or removed", f"{len(over)}", ", ".join(clean(job.name, 24) for job in over[:3]))
    page.sections.append(Section("Jobs", _COMPLETION, heads=_HEADS, rows=[_row(job) for job in view.jobs]))
    if view.schedule is not None:
        schedule, axis = view.schedule.schedule, figures.Axis(since=SINCE, end_s=None if view.is_over else view.end_s)
        picture, left_out = figures.gantt(schedule, axis, view.names)
        page.sections += [
            Section("Nodes over time", left_out or HINT, pictures=[picture], wide=True),
            Section("Queue", pictures=[figures.queue(schedule, axis)], wide=True),
        ]
    rows = [[f"{_age(ago)}", clean(name, 24), clean(what, 200)] for ago, name, what in view.events]
    page.sections.append(Section("What happened last", heads=("when", "job", "what"), rows=rows))
    return page


def live_status(view: LiveView) -> str:
    """Summarize the page in one line for screen readers; it changes only if a job changes."""
    states = [job.state for job in view.jobs]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "no jobs"


_COMPLETION = (
    "Completion is counted from a job's arrival. At first: as predicted before it ran, else as its first report told. Now: as "
    "its last report tells, if it keeps its devices."
)
_HEADS = ("job", "state", "devices", "waited", "predicted at first", "predicted now", "achieved", "why")


def _row(job: JobNow) -> list[str]:
    over = job.state in ("done", "failed", "removed")
    return [
        clean(job.name, 24),
        job.state,
        clean(job.nodes, 60) or "none",
        seconds(job.waited_s),
        _time(job.first_s),
        "" if over else _time(job.now_s),
        _time(job.achieved_s) if job.state == "done" else "never" if over else "",
        clean(job.why, 300),
    ]


def _time(value: float) -> str:
    return seconds(value) if math.isfinite(value) else UNKNOWN


def _age(value: float) -> str:
    return f"{seconds(value)} ago" if value >= 1 else "now"


def _jobs_in(view: LiveView, *states: str) -> list[JobNow]:
    return [job for job in view.jobs if job.state in states]


def _subtitle(view: LiveView) -> str:
    nodes = f"{count(len(view.nodes), 'node')} up, {count(sum(view.nodes.values()), 'device')}"
    decided = f"; the last decision {_age(view.decided_s)}, one every {seconds(view.round_s)}" if view.decided_s >= 0 else ""
    return f"on {view.executor}: {nodes}{'' if view.is_over else decided}"


def _findings(view: LiveView) -> Iterator[str]:
    if view.is_over:
        yield "Every job is over."
    elif view.is_late:
        late = seconds(view.decided_s)
        yield f"No decision for {late}: paceline schedule live does not seem to run. Its jobs may run on."
