"""Arguments of one worker started by ``torchrun … -m paceline.training``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.cli.arguments.training_arguments import add_training_arguments, timeout_s, training_run
from paceline.cli.parser import Parser, parse
from paceline.training.runs.training_run import TrainingRun


@dataclass(frozen=True)
class WorkerOptions:
    """Parsed command line of a worker."""

    options: argparse.Namespace

    @property
    def timeout_s(self) -> float:
        """Seconds that this worker waits for the others. It is needed before the run is known."""
        return timeout_s(self.options)

    def run(self, world_size: int) -> TrainingRun:
        """Return the run with its number of workers set to ``world_size``. Raises UserError."""
        return training_run(self.options, world_size)


def worker_options(arguments: Sequence[str]) -> WorkerOptions:
    """Parse the options of a worker. Raises UserError for unknown ones."""
    text = "One worker of a run, on one machine or several. torchrun starts all workers."
    parser = Parser(prog="torchrun … -m paceline.training", description=text)
    add_training_arguments(parser)
    return WorkerOptions(parse(parser, arguments))
