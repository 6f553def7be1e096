"""Page of a live queue: when each waiting job starts and ends."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.reporting.pages.answer_page import Page, Section
from paceline.reporting.text.start_text import asked_text, devices_text, owner_head, range_text, when_text
from paceline.reporting.values import clean, count
from paceline.scheduling.starts.reason_codes import held_text
from paceline.scheduling.starts.start_answer import StartAnswer

MOST = 200
"""Jobs of the table."""
_HEADS = ("queue", "devices", "starts", "80 % range", "ends", "why")


def queue_page(answer: StartAnswer) -> Page:
    """Return the page of a queue's forecast."""
    queue = answer.queue
    held = sum(job.devices for job in queue.running)
    page = Page("live queue", f"{count(len(queue.waiting), 'job')} waiting", _subtitle(answer), list(_findings(answer)))
    page.card("running", f"{len(queue.running)}", f"{held} of {devices_text(answer)} held")
    page.card("waiting", f"{len(queue.waiting)}", f"{sum(job.devices for job in queue.waiting)} devices asked for")
    last = max(answer.jobs, key=lambda job: job.start(), default=None)
    if last is not None:
        page.card("last start", when_text(last), clean(last.job.name, 24))
    rows = [
        [
            clean(each.job.name, 24),
            clean(each.job.user, 16),
            clean(each.job.queue, 16),
            asked_text(each.job),
            when_text(each),
            range_text(each),
            range_text(each, end=True),
            clean(" ".join(answer.reasons.get(each.job.name, ())), 300),
        ]
        for each in answer.jobs[:MOST]
    ]
    text = "" if len(answer.jobs) <= MOST else f"The first {MOST} of {len(answer.jobs):,}."
    page.sections.append(Section("Waiting jobs", text, heads=("job", owner_head(answer), *_HEADS), rows=rows))
    if queue.held:
        rows = [[clean(job.name, 24), clean(job.user, 16), clean(held_text(job), 200)] for job in queue.held[:MOST]]
        page.sections.append(Section("Not up to the scheduler", heads=("job", owner_head(answer), "why"), rows=rows))
    return page


def queue_status(answer: StartAnswer) -> str:
    """Summarize the page in one line for screen readers."""
    return f"{len(answer.queue.waiting)} waiting, {len(answer.queue.running)} running"


def _subtitle(answer: StartAnswer) -> str:
    at = answer.moment(0.0).replace("T", " ")
    printed = f", printed {at}" if at else ""
    return f"under {answer.queue.scheduler.capitalize()}{printed}; {answer.futures} futures"


def _findings(answer: StartAnswer) -> Iterator[str]:
    for note in answer.notes:
        yield clean(note, 300)
