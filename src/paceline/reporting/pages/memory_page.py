"""Page of a step's memory over time."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.memory_timeline import MemoryTimeline
from paceline.record import Metrics
from paceline.reporting.figures.memory_figures import memory_svg
from paceline.reporting.pages.answer_page import Page, Section
from paceline.reporting.text.memory_text import LARGEST, SUBJECTS, peak_text, sentences
from paceline.reporting.values import clean, memory, percent, seconds, strategy_text


def memory_page(p: Metrics, timelines: Sequence[MemoryTimeline], shown: MemoryTimeline) -> Page:
    """Return the page: the figure, the parts at the peak, and the stages."""
    findings = [text for text in (getattr(p, "headline", ""), f"Memory is fullest {peak_text(shown)}.") if text]
    page = Page("memory", clean(p.workload), strategy_text(p.strategy), findings, "The range goes from no to many fragments.")
    page.card("peak", memory(shown.peak_bytes), f"{memory(shown.span[0])} to {memory(shown.span[1])}")
    page.card("a device has", memory(shown.available), f"the job {getattr(p, 'fit', 'fits')}")
    page.card("one step", seconds(p.step_time_s), shown.title)
    parts = [[name, memory(size), percent(size / shown.peak_bytes)] for name, size in shown.at_peak.items()]
    tensors = [
        [clean(name, 80), purpose, f"{number:,}", memory(size)]
        for purpose, name, number, size in shown.largest_at_peak(2 * LARGEST)
    ]
    page.sections += [
        Section("Memory over the step", "", [memory_svg(timelines, shown, "memory")], wide=True),
        Section("At the peak", "", heads=["purpose", "bytes", "share"], rows=parts),
        Section("Largest tensors at the peak", "", heads=["tensors", "purpose", "number", "bytes"], rows=tensors),
    ]
    if len(timelines) > 1:
        rows = [[str(t.stage + 1), t.title, memory(t.peak_bytes), peak_text(t)] for t in timelines]
        page.sections.append(Section("Stages", heads=["stage", "ranks", "peak", "when"], rows=rows))
    about = [clean(a, 1000) for a in p.assumptions if getattr(a, "kind", "") in SUBJECTS]
    page.sections.append(Section("It rests on", items=[*about, *sentences(shown)]))
    return page
