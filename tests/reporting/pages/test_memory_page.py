"""The page of memory over time."""

from __future__ import annotations

import paceline
from paceline.reporting.pages.answer_page import render
from paceline.reporting.pages.memory_page import memory_page


def test_the_page_has_the_figure_the_peak_and_the_stages() -> None:
    p = paceline.predict("gpt2", "4 A100", pipeline=2, global_batch_size=16, micro_batches=4)
    page = memory_page(p, p.memory_timelines, p.memory_timeline())
    titles = [section.title for section in page.sections]
    assert titles == ["Memory over the step", "At the peak", "Largest tensors at the peak", "Stages", "It rests on"]
    html = render(page)
    assert "<svg" in html and "Memory is fullest" in html
    rows = next(section.rows for section in page.sections if section.title == "At the peak")
    assert [row[0] for row in rows] == [*p.memory_timeline().at_peak]
