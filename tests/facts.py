"""Matching of an error message by the facts in it, so that its other words can change.

A fact is the value that was given, a legal value, or the name of a choice, a device or a file.
"""

from __future__ import annotations

import re


def facts(*words: str) -> str:
    """Pattern for ``match=`` that finds every one of the words, whole and in any order."""
    assert words, "no facts"
    return r"(?s)\A" + "".join(f"(?=.*{_whole(word)})" for word in words)


def _whole(word: str) -> str:
    """Pattern for a word that is no part of a longer word or number."""
    before = r"(?<![\w.])" if re.match(r"\w", word) else ""
    after = r"(?!\w|[.,]\d)" if re.search(r"\w\Z", word) else ""
    return before + re.escape(word) + after
