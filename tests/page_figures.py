"""Figures of a page: a page says what a test expects if one of its paragraphs has the same figures in the same order.

The words around the figures may change freely.
"""

from __future__ import annotations

import re

FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)?(?:\s*(?:%|times|[mun]?s\b|[kKMGT]?i?[bB](?:/s)?\b))?")


def figures(text: str) -> list[str]:
    """Return the numbers of a text, each with its unit."""
    return [" ".join(figure.split()) for figure in FIGURE.findall(text)]


def says(page: str, expected: str) -> bool:
    """Return whether a paragraph of the page has the figures of the expected sentence, in order."""
    wanted = figures(expected)
    assert wanted, f"no figure in {expected!r}"
    return any(_in_order(wanted, figures(paragraph)) for paragraph in re.split(r"\n\s*\n|\n(?=[|#-])", page))


def _in_order(wanted: list[str], there: list[str]) -> bool:
    """Return whether all wanted figures are there, in order."""
    rest = iter(there)
    return all(figure in rest for figure in wanted)
