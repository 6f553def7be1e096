"""Write ``glossary.md`` from the data of ``paceline help`` (``paceline.cli.guide``).

    python docs/glossary_page.py

A test compares the page with the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from paceline.cli.guide.glossary import sections, subjects
from paceline.exit_codes import exit_code_table

PAGE = Path(__file__).with_name("glossary.md")
HEAD = """# Glossary

Look up a word of Paceline's output or pages. They are the field's terms. `paceline help TERM` prints them in the terminal, and
`paceline help OPTION` does the same for options and their values.

This page is written from `src/paceline/cli/guide/*.toml`. After a change of one, run `python docs/glossary_page.py`.
"""


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD]
    for title, meanings in sections().items():
        parts.append("\n".join((f"## {title}\n", *_table("term", meanings.items()))) + "\n")
    for subject in subjects().values():
        parts.append("\n".join((f"## {subject['title']}\n", *(f"- {line}" for line in subject["text"]))) + "\n")
    parts.append("\n".join(("## Exit codes\n", *_table("code", exit_code_table()))) + "\n")
    return "\n".join(parts)


def _table(name: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return the lines of a table of two columns."""
    return [f"| {name} | meaning |", "|---|---|", *(f"| {first} | {second} |" for first, second in rows)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
