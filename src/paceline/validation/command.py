"""``paceline validate``: its words, and what it prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from paceline.errors import unknown
from paceline.validation.case import HOLD_OUTS, Info
from paceline.validation.sets import NAMES
from paceline.validation.validate import Validation

EXAMPLE = """example:
  paceline validate mlperf mlperf_training.csv --info one_node"""


def add_validate(group: Any, command: Callable[..., argparse.ArgumentParser], run: Callable[..., Any]) -> None:
    """Add the command to the command line's ``group``; ``run`` prints what ``answer`` finds."""
    parser = command(group, "validate", "error of the predictions on measured data", EXAMPLE, run)
    parser.add_argument("name", metavar="NAME", help=f"the set: {', '.join(NAMES)}")
    parser.add_argument("file", metavar="FILE.csv", help="with the columns of that set")
    parser.add_argument("--info", metavar="I", default="none", help="what may be seen: none, one_device, one_node or up_to=N")
    parser.add_argument("--hold-out", metavar="H", help="what constants are fitted without: device, model or scale (by --info)")


def answer(o: argparse.Namespace) -> Validation:
    """Validate as the options say. Raises UserError."""
    from paceline.validation.validate import validate

    if o.hold_out is not None and o.hold_out not in HOLD_OUTS:
        raise unknown("--hold-out", o.hold_out, HOLD_OUTS)
    return validate(o.name, o.file, Info.parse(o.info), o.hold_out, lambda text: print(text, file=sys.stderr, flush=True))
