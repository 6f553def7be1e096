"""Options of training scripts that no prediction needs, with what to write instead or why to leave them out."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

from paceline.strategy.choices.synonyms import folded

_OTHERS = "leave it out: no prediction needs it"
AMOUNTS = frozenset(("steps", "samples", "epochs", "tokens"))
"""Statements about a whole training."""


def unneeded(option: str) -> str:
    """Return what to do about an option of a training script; empty if it is not one of these."""
    name = folded(option.partition("=")[0])
    last = name.rpartition(".")[2]
    for advice, patterns in _patterns().items():
        if any(fnmatchcase(each, pattern) for each in (name, last) for pattern in patterns):
            return advice
    return ""


def ignored_in_files(option: str) -> str:
    """Return what to do about an option that readers of other tools' files ignore; empty for others."""
    from paceline.questions.readers.keys import tool_keys

    path = folded(option.partition("=")[0]).split(".")
    return _OTHERS if any(keys.ignores(path) for keys in tool_keys().values()) else ""


@cache
def _patterns() -> Mapping[str, list[str]]:
    """Return the patterns of names by advice."""
    text = (files("paceline.cli.arguments") / "unneeded_options.toml").read_text(encoding="utf-8")
    return {each["advice"]: each["names"].split() for each in tomllib.loads(text)["options"]}


def amount(option: str) -> bool:
    """Return whether an option states how much is trained, in any tool's words."""
    from paceline.questions.asked import typed_names

    entry = typed_names().get(folded(option.partition("=")[0]))
    return entry is not None and entry[0] in AMOUNTS


def together(options: Iterable[str], advice: str) -> list[str]:
    """Return the options of the same advice, so that one error names all of them."""
    return list(dict.fromkeys(name for option in options if unneeded(name := option.partition("=")[0]) == advice))
