"""Option ``--report``, which also writes the answer as a page."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from paceline.cli.guide.sections import section
from paceline.reporting.pages.answer_page import Page, write
from paceline.reporting.text.screen import Screen


def add_report_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option for the place of the page."""
    answers = section(parser, "answer")
    text = "also write report.html into DIR, or into FILE.html"
    answers.add_argument("--report", metavar="DIR|FILE", default="", help=text)


def with_report(screen: Screen, where: str, page: Callable[[], Page]) -> Screen:
    """Write the page if a report is requested, and add its place to the answer. Raises UserError."""
    return screen.writing(f"report: {write(page(), where)}") if where else screen
