"""``--report``: the answer also as a page."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from paceline.reporting.answer_page import Page, write


def add_report_argument(parser: argparse.ArgumentParser) -> None:
    """Where the page goes."""
    text = "also write report.html into DIR, or into FILE.html"
    parser.add_argument("--report", metavar="DIR|FILE", default="", help=text)


def with_report(text: str, where: str, page: Callable[[], Page]) -> str:
    """The text; where a report is asked for, writes the page and adds its place. Raises UserError."""
    return f"{text.rstrip()}\nreport: {write(page(), where)}" if where else text
