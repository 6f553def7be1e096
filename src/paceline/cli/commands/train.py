"""``paceline train``: train on local workers, with a prediction before and a measurement after."""

from __future__ import annotations

import argparse

from paceline.cli.arguments.training_arguments import add_training_arguments, training_run
from paceline.cli.guide.sections import common, section
from paceline.cli.parser import Answer, Parser

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


def _train(o: argparse.Namespace) -> Answer:
    from paceline.reporting import training_screen, write_report
    from paceline.rundir import RunDir
    from paceline.training.runs.train import train_run

    run = training_run(o)
    record, prediction = train_run(run)
    write_report(run.out)
    data = {**record.to_json(), "predicted": prediction.to_json(), "out": run.out}
    contents = RunDir(run.out).read(partial=True)
    # The last record is this run's.
    trust = contents.trust.get(list(contents.records)[-1])
    return data, training_screen(prediction, record, trust).writing(f"report: {run.out}/report.html")
