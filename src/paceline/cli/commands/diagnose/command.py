"""Options and answer of ``paceline diagnose``."""

from __future__ import annotations

import argparse

from paceline.cli.answer_head import taken
from paceline.cli.arguments.prediction_arguments import add_prediction_arguments
from paceline.cli.arguments.prediction_inputs import prediction_inputs, predictor
from paceline.cli.guide.sections import common, section
from paceline.cli.parser import Answer, Parser
from paceline.errors import UserError
from paceline.planning.diagnose.diagnose import diagnose, parse_also
from paceline.planning.diagnose.measured import EXAMPLES, parse_speed
from paceline.planning.diagnose.question import RunQuestion
from paceline.reporting.text.diagnose_text import diagnosis_screen

EXAMPLE = """example:
  paceline diagnose gpt2 --cluster '2x8 A100, 8x200Gb/s InfiniBand' --global-batch 128 --measured '1.4 s/step'"""


def add(parser: Parser) -> None:
    """Add the arguments of ``paceline diagnose``."""
    measured = section(parser, "changes")
    parser.runs(_diagnose, EXAMPLE)
    add_prediction_arguments(parser)
    speed = f"speed of the run: {EXAMPLES.replace('%', '%%')}"
    common(measured.add_argument("--measured", metavar="SPEED", default="", help=speed))
    also = "another measurement of it with changed options, 'nodes=1, global-batch=8: 0.31 s'; may be repeated"
    common(measured.add_argument("--also", metavar="CHANGES:SPEED", action="append", default=[], help=also))


def _diagnose(o: argparse.Namespace) -> Answer:
    if not o.measured:
        raise UserError("no measured speed is given", f"give --measured {EXAMPLES}")
    speed, also = parse_speed(o.measured), [parse_also(text) for text in o.also]
    inputs = prediction_inputs(o)
    found = diagnose(RunQuestion(*inputs, predictor(o, o.loader)), speed, also)
    return found.to_json(), diagnosis_screen(found).noting(*taken(o, inputs))
