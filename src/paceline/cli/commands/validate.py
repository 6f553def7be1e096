"""``paceline validate``: the error of the predictions on measured data."""

from __future__ import annotations

import argparse
import sys

from paceline.cli.parser import Answer, Parser
from paceline.errors import unknown
from paceline.reporting.text.validation_text import validation_screen
from paceline.validation.case import HOLD_OUTS, Info
from paceline.validation.sets import NAMES
from paceline.validation.validate import validate

EXAMPLE = """example:
  paceline validate mlperf mlperf_training.csv --info one_node"""


def add(parser: Parser) -> None:
    """Add the arguments of ``paceline validate``."""
    parser.runs(_validate, EXAMPLE)
    parser.add_argument("name", metavar="NAME", help=f"the set: {', '.join(NAMES)}")
    parser.add_argument("file", metavar="FILE.csv", help="with the columns of that set")
    info = "what the predictor may see: none, one_device, one_node or up_to=N"
    parser.add_argument("--info", metavar="I", default="none", help=info)
    hold_out = "fit the constants without the case's device, model or scale (default: by --info)"
    parser.add_argument("--hold-out", metavar="H", help=hold_out)


def _validate(o: argparse.Namespace) -> Answer:
    if o.hold_out is not None and o.hold_out not in HOLD_OUTS:
        raise unknown("--hold-out", o.hold_out, HOLD_OUTS)
    validation = validate(o.name, o.file, Info.parse(o.info), o.hold_out, _progress)
    data = validation.to_json()
    return data, validation_screen(data)


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
