"""Lines of a batch that grows, for the screen of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.planning.search.growing_batch import GrowingBatch, GrowthStage
from paceline.reporting.text.screen import GAP, Block, Pair, Paragraph, Table, heading
from paceline.reporting.values import percent, seconds


def growth_blocks(growing: GrowingBatch) -> Iterator[Block]:
    """Yield the lines of a batch that grows, for a plan."""
    yield heading("A batch that grows with the critical batch:")
    yield stage_table(growing.stages)
    constant = f"{growing.constant_steps:,} in {seconds(growing.constant_s)} at the first batch"
    fewer = f", {percent(growing.saved)} fewer than {constant}" if growing.saved > 0 else f": the batch stays; {constant}"
    yield Paragraph(f"{growing.steps:,} steps in {seconds(growing.time_s)}{fewer}. The rate grows by the {growing.rule} rule.")
    if growing.text:
        yield Pair("train", f"--global-batch {growing.stages[0].strategy.global_batch_size} --batch-growth {growing.text}")
    yield GAP


def stage_table(stages: Sequence[GrowthStage]) -> Table:
    """Return a table of the stages of a batch that grows. An endless stage has no number of steps."""
    rows = [
        (f"{s.strategy.global_batch_size:,}", f"{s.samples:,}", f"{s.steps:,}" if s.steps else "", seconds(s.step_time_s))
        for s in stages
    ]
    return Table(("global batch", "from sample", "steps", "a step"), rows)
