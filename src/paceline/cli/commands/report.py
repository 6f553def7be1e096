"""``paceline report``: write a run directory's page again."""

from __future__ import annotations

import argparse

from paceline.cli.parser import BRIEF, Answer, Parser
from paceline.reporting import write_report
from paceline.reporting.text.screen import Screen
from paceline.rundir import RunDir


def add(parser: Parser) -> None:
    """Add the arguments of ``paceline report``."""
    parser.runs(_report, "example:\n  paceline report runs/demo", shapes=BRIEF)
    parser.add_argument("directory", metavar="DIR")


def _report(o: argparse.Namespace) -> Answer:
    directory = RunDir(o.directory)
    if directory.schedule_path.exists():
        from paceline.reporting.pages.schedule_page import render_schedules
        from paceline.scheduling.simulate.saved import from_json

        path = directory.write_report(render_schedules(directory.read_schedule(from_json)))
    else:
        path = write_report(directory)
    return {"report": str(path)}, Screen.plain(f"report: {path}")
