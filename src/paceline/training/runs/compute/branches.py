"""Branched runs: short runs from the checkpoint of a run at several batches, to find its critical batch."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paceline.errors import UserError
from paceline.prediction.learning.branched_batch import FILE, TOLERANCE, BranchedBatch, BranchedRun, write_row
from paceline.training.runs.checkpoints import checkpoint
from paceline.training.runs.data import load
from paceline.training.runs.train import train_run
from paceline.training.runs.training_run import TrainingRun

FOLDER = "branches"


def critical_batch(
    directory: str | Path,
    batches: Sequence[int],
    *,
    run: TrainingRun | None = None,
    epochs: int = 1,
    tolerance: float = TOLERANCE,
) -> BranchedBatch:
    """Continue a run from its checkpoint for some epochs at each batch, and compare the held-out losses.

    The rate of each branch is scaled to its batch by the run's rule. All branches see the same samples. The result is also a
    row of ``critical_batch.csv`` in the run's directory, which ``plan --critical-batches`` takes.

    Args:
        directory: of a run without a decay, with its checkpoint at the end of an epoch.
        batches: multiples of the run's batch, which is always a branch.
        run: the run, if its code needs naming again; None: that of the checkpoint.
        epochs: length of the branches. ``tolerance``: further loss in nats that counts as none.

    Raises:
        UserError: no such checkpoint, one within an epoch, a run with a decay or with a batch that grows, or a batch that is
            no multiple of the run's.
    """
    folder = Path(directory)
    state = checkpoint.load(folder)
    before: TrainingRun = run or state["run"]
    base = before.strategy.global_batch_size
    for refused, what, fix in (
        (state["step"], f"branches from {checkpoint.place(state)}", "branch from a checkpoint at the end of an epoch"),
        (before.decay, "branches of a run whose rate decays to its end", "leave --decay out of the run"),
        (before.batch_growth, "branches of a run whose batch grows", "branch from a run with a constant batch"),
        (epochs < 1, f"branches of {epochs} epochs", "give 1 or more"),
    ):
        if refused:
            raise UserError(what, fix)
    samples = state["epoch"] * len(load(before.data).train_y)
    found: list[BranchedRun] = []
    for batch in sorted({base, *batches}):
        out = folder / FOLDER / f"{samples}-{batch}"
        shutil.rmtree(out, ignore_errors=True)
        branch = replace(
            before,
            resume=str(folder),
            out=str(out),
            label="",
            epochs=state["epoch"] + epochs,
            batch_growth=f"{batch}@{samples}" if batch != base else "",
            elastic=False,
            checkpoint_every="",
        )
        record, _ = train_run(branch)
        found.append(BranchedRun(batch, float(record.curve[-1]["held_out_loss"])))
        print(f"batch {batch}: held-out loss {found[-1].loss:.4f}", file=sys.stderr, flush=True)
    result = BranchedBatch(samples, tuple(found), tolerance)
    write_row(folder / FILE, result)
    return result
