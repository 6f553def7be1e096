"""The terms of ``paceline help`` are the docs' glossary."""

from __future__ import annotations

import runpy
from pathlib import Path

from paceline.cli.guide.glossary import sections, subjects, term, terms

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_written_from_the_data() -> None:
    written = runpy.run_path(str(DOCS / "glossary_page.py"))["page"]()
    assert (DOCS / "glossary.md").read_text() == written, "run python docs/glossary_page.py"


def test_terms_are_found_in_any_form() -> None:
    assert len(terms()) > sum(map(len, sections().values())) > 90
    assert term("Micro Batch") == term("micro-step") == terms()["micro batch"]
    assert term("nothing") == ""
    assert all(subject["title"] and subject["text"] for subject in subjects().values())
