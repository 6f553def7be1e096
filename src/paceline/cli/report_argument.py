"""``--report``: the answer also as a page."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from paceline.reporting.pages.answer_page import Page, write
from paceline.reporting.text.screen import Screen


def add_report_argument(parser: argparse.ArgumentParser) -> None:
    """Where the page goes."""
    text = "also write report.html into DIR, or into FILE.html"
    parser.add_argument("--report", metavar="DIR|FILE", default="", help=text)


def with_report(screen: Screen, where: str, page: Callable[[], Page]) -> Screen:
    """The answer; where a report is asked for, writes the page and adds its place. Raises UserError."""
    return screen.writing(f"report: {write(page(), where)}") if where else screen
