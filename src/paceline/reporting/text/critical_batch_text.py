"""Lines of a batch that grows, for the screen of a plan."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.planning.search.growing_batch import GrowingBatch
from paceline.reporting.text.screen import GAP, Block, Pair, Paragraph, Table, heading
from paceline.reporting.values import percent, seconds


def growth_blocks(growing: GrowingBatch) -> Iterator[Block]:
    """Yield the lines of a batch that grows, for a plan."""
    yield heading("A batch that grows with the critical batch:")
    rows = [
        (f"{s.strategy.global_batch_size:,}", f"{s.samples:,}", f"{s.steps:,}", seconds(s.step_time_s)) for s in growing.stages
    ]
    yield Table(("global batch", "from sample", "steps", "a step"), rows)
    constant = f"{growing.constant_steps:,} in {seconds(growing.constant_s)} at the first batch"
    fewer = f", {percent(growing.saved)} fewer than {constant}" if growing.saved > 0 else f": the batch stays; {constant}"
    yield Paragraph(f"{growing.steps:,} steps in {seconds(growing.time_s)}{fewer}. The rate grows by the {growing.rule} rule.")
    if growing.text:
        yield Pair("train", f"--global-batch {growing.stages[0].strategy.global_batch_size} --batch-growth {growing.text}")
    yield GAP
