"""Write the table of files of jobs in ``scheduling.md`` from the forms that are read (``paceline.scheduling.traces.forms``).

    python docs/job_files_page.py

A test compares the table with the forms.
"""

from __future__ import annotations

import re
from pathlib import Path

from paceline.scheduling.traces.forms import FORMS

PAGE = Path(__file__).with_name("scheduling.md")
HEAD = "| file | written by, or columns |\n|---|---|\n"


def table() -> str:
    """Return the table: a row for each form."""
    escaped = [(form.about, form.example.replace("|", r"\|")) for form in FORMS if form.example]
    return HEAD + "".join(f"| {about} | `{example}` |\n" for about, example in escaped)


def page(text: str) -> str:
    """Return the text of the page with the table of now."""
    before, _, rest = text.partition(HEAD)
    after = re.sub(r"\A(?:\|.*\n)*", "", rest)
    return before + table() + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
