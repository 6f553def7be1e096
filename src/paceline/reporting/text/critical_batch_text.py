"""Screens of critical batches by branched runs, and lines of a batch that grows."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.planning.search.growing_batch import GrowingBatch
from paceline.prediction.learning.branched_batch import FILE, BranchedBatch
from paceline.reporting.text.screen import GAP, Block, Pair, Paragraph, Screen, Table, heading
from paceline.reporting.values import percent, seconds


def branches_screen(found: BranchedBatch, directory: str) -> Screen:
    """Return the screen of branched runs."""
    base = found.branches[0].loss
    rows = [(f"{b.batch:,}", f"{b.loss:.4f}", f"{b.loss - base:+.4f}") for b in found.branches]
    least = "" if found.bounded else "at least "
    text = f"critical batch after {found.samples:,} samples: {least}{found.critical_batch:,}"
    within = f"the largest batch whose loss is within {found.tolerance:g} nats of the run's own, like all smaller ones"
    return Screen(
        title=f"Branches of {directory}",
        answer=(
            Table(("global batch", "held-out loss", "difference"), rows),
            GAP,
            Paragraph(f"{text[0].upper()}{text[1:]}, {within}."),
        ),
        brief=text,
        files=(f"wrote {directory}/{FILE}",),
    )


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
