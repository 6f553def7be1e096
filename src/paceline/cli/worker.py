"""What one worker takes under ``torchrun … -m paceline.training``."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.cli.parser import Parser, parse
from paceline.cli.training_arguments import add_training_arguments, training_run
from paceline.training.training_run import Job


def worker_run(arguments: Sequence[str], world_size: int) -> Job:
    """The run that the command line of a worker describes, among ``world_size``. Raises UserError."""
    text = "One worker of a run, on one machine or several: torchrun starts as many as there are."
    parser = Parser(prog="torchrun … -m paceline.training", description=text)
    add_training_arguments(parser)
    return training_run(parse(parser, arguments), world_size)
