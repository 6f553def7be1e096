"""``paceline report``: write a run directory's page again."""

from __future__ import annotations

import argparse

from paceline.cli.parser import BRIEF, Answer, Parser
from paceline.reporting import write_report
from paceline.reporting.screen import Screen


def add(parser: Parser) -> None:
    """Add what ``paceline report`` takes."""
    parser.runs(_report, "example:\n  paceline report runs/demo", shapes=BRIEF)
    parser.add_argument("directory", metavar="DIR")


def _report(o: argparse.Namespace) -> Answer:
    path = write_report(o.directory)
    return {"report": str(path)}, Screen.plain(f"report: {path}")
