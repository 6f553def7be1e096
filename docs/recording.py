"""Write the session of docs/first-hour.md as a recording for a terminal (asciicast version 2).

    python docs/recording.py

A command is typed at a usual speed, and what it prints follows at once. ``asciinema play docs/first-hour.cast`` shows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
PAGE, RECORDING = DOCS / "first-hour.md", DOCS / "first-hour.cast"
COLUMNS, ROWS = 80, 40
KEY_S, READ_S = 0.03, 4.0
"""Seconds between keys, and those to read an answer."""
Event = tuple[float, str]


def scenes(page: str) -> Iterator[tuple[str, str, str]]:
    """Yield the sentence before a command, the command and what it prints."""
    for said, block in re.findall(r"([^\n]+)\n\n```console\n\$ (.*?)```", page, re.DOTALL):
        command, _, printed = block.partition("\n")
        yield said, command, printed


def events(page: str) -> Iterator[Event]:
    """Yield the seconds and the text of each output of the terminal."""
    now = 0.0
    for said, command, printed in scenes(page):
        yield now, f"\x1b[2m# {said}\x1b[0m\r\n$ "
        for key in command:
            now = round(now + KEY_S, 3)
            yield now, key
        now = round(now + 0.5, 3)
        yield now, "\r\n" + printed.replace("\n", "\r\n") + "\r\n"
        now += READ_S


def recording(page: str) -> str:
    """Return the recording of a page's session."""
    head = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "The first hour with Paceline"}
    lines = [json.dumps(head), *(json.dumps([at, "o", text], ensure_ascii=False) for at, text in events(page))]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the recording."""
    RECORDING.write_text(recording(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
