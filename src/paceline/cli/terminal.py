"""Output of an answer on stdout, in the terminal's width and colours."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable

from paceline.reporting.text.screen import NARROWEST, USUAL_WIDTH, WIDEST, Line, Screen, plain

COLOURS = {
    "heading": "bold",
    "name": "bold",
    "bad": "bold red",
    "warning": "yellow",
    "faint": "dim",
    "work": "green",
    "wait": "yellow",
}
"""Style names of rich, by style."""


def show(screen: Screen, *, brief: bool = False, why: bool = False) -> None:
    """Print the answer, its one-line form, or the whole answer with its sources."""
    if brief:
        print(screen.brief_line(), flush=True)
        return
    lines = screen.lines(width(), why)
    if colour():
        _coloured(lines)
    else:
        print("\n".join(map(plain, lines)), flush=True)


def width() -> int:
    """Return the columns of the terminal, from 40 to 200; ``COLUMNS`` overrides them. 80 without a terminal."""
    return min(max(shutil.get_terminal_size((USUAL_WIDTH, 24)).columns, NARROWEST), WIDEST)


def colour() -> bool:
    """Return whether stdout is a terminal with colours and ``NO_COLOR`` is not set (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _coloured(lines: Iterable[Line]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, force_terminal=True, width=WIDEST, highlight=False, markup=False, emoji=False)
    for line in lines:
        console.print(Text.assemble(*((text, COLOURS.get(style, "")) for text, style in line)), soft_wrap=True)
