"""Terms and subjects of ``paceline help``, read from the data that also makes the docs' glossary."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from paceline.names import fold


@cache
def sections() -> Mapping[str, Mapping[str, str]]:
    """Return the meanings of the terms, by section and term."""
    return _read("glossary.toml")


@cache
def subjects() -> Mapping[str, Mapping[str, Any]]:
    """Return the pages on machines, networks, models, files and prices: a title and lines of text."""
    return _read("subjects.toml")


def terms() -> dict[str, str]:
    """Return the meaning of each term; a row for several terms gives one entry to each."""
    every: dict[str, str] = {}
    for section in sections().values():
        for names, meaning in section.items():
            every |= dict.fromkeys((name.strip("` ") for name in names.split(",")), meaning)
    return every


def term(name: str) -> str:
    """Return the meaning of a term, in any case and with any separators; empty if it is none."""
    return {fold(each): meaning for each, meaning in terms().items()}.get(fold(name), "")


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((files("paceline.cli.guide") / name).read_text(encoding="utf-8"))
