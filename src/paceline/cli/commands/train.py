"""``paceline train``: train on local workers, with a prediction before and a measurement after."""

from __future__ import annotations

import argparse
from dataclasses import replace

from paceline.cli.arguments.exchange_arguments import recipe_notes
from paceline.cli.arguments.training_arguments import add_training_arguments, training_run
from paceline.cli.guide.sections import common, section
from paceline.cli.parser import Answer, Parser
from paceline.errors import UserError
from paceline.prediction.learning.branched_batch import FILE, TOLERANCE, BranchedBatch
from paceline.reporting.text.screen import GAP, Paragraph, Screen, Table
from paceline.training.runs.training_run import TrainingRun

EXAMPLE = """example:
  paceline train --model lenet5 --data digits --workers 4 --compression terngrad --epochs 10 --out runs/mine"""


def add(parser: Parser) -> None:
    """Add the arguments of ``paceline train``."""
    machines = section(parser, "machines")
    parser.runs(_train, EXAMPLE)
    parser.set_defaults(own_progress=True)
    common(
        machines.add_argument(
            "--workers", metavar="N", type=int, help="processes on this machine, at most 16 or 4 a core (default 2)"
        )
    )
    add_training_arguments(parser)
    learning = section(parser, "learning")
    branches = "with --resume: short runs from that checkpoint at these batches, 128,256,512, to find the critical batch"
    learning.add_argument("--branches", metavar="BATCHES", help=branches)
    learning.add_argument("--branch-epochs", metavar="E", type=int, default=1, help="length of a branch (default %(default)s)")
    no_loss = "further loss in nats that counts as none (default %(default)g)"
    learning.add_argument("--tolerance", metavar="LOSS", type=float, default=TOLERANCE, help=no_loss)


def _train(o: argparse.Namespace) -> Answer:
    from paceline.reporting import training_screen, write_report
    from paceline.rundir import RunDir
    from paceline.training.runs.train import train_run

    run = training_run(o)
    if o.branches is not None:
        return _branches(o, run)
    record, prediction = train_run(run)
    write_report(run.out)
    data = {**record.to_json(), "predicted": prediction.to_json(), "out": run.out}
    contents = RunDir(run.out).read(partial=True)
    # The last record is this run's.
    trust = contents.trust.get(list(contents.records)[-1])
    notes = recipe_notes(o, run.strategy.sync_every, run.strategy.optimizer)
    return data, training_screen(prediction, record, trust).noting(*notes).writing(f"report: {run.out}/report.html")


def _branches(o: argparse.Namespace, run: TrainingRun) -> Answer:
    from paceline.training.runs.compute.branches import critical_batch

    if not o.resume:
        raise UserError("--branches without a checkpoint to branch from", "give --resume, the directory of a run")
    try:
        batches = [int(batch) for batch in o.branches.split(",")]
    except ValueError:
        raise UserError(f"--branches {o.branches}", "write batches with commas: 128,256,512") from None
    found = critical_batch(o.resume, batches, run=replace(run, resume=""), epochs=o.branch_epochs, tolerance=o.tolerance)
    return found.to_json(), branches_screen(found, o.resume)


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
