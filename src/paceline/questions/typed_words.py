"""Statements that an option means which no tool spells so: other forms of its words, negations, and values without an option.

``--use-gradient-checkpointing`` has the words of ``gradient_checkpointing``, ``--no-gradient-checkpointing`` denies it, and
``--nvfp4`` is a value of the precision.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from paceline.names import fold
from paceline.questions.asked import Entry, typed_names
from paceline.strategy.choices.choice_values import Name
from paceline.strategy.choices.synonyms import TYPED, Synonym, folded
from paceline.strategy.frameworks import FRAMEWORKS
from paceline.strategy.strategy import CHOICES

_DENIALS = ("no_", "disable_", "without_")
_OPTIONS_ONLY = frozenset(("data", "sharded", "dense", "none"))
"""Values that mean something else as options."""


def typed_entry(name: str) -> Entry | None:
    """Return the statement that a typed option means; None if no declared name is near enough to be sure."""
    key = folded(name)
    if (exact := typed_names().get(key)) is not None:
        return exact
    if (same := _by_words().get(_words(key))) is not None:
        return same
    if (value := _bare_values().get(fold(key.removeprefix("use_")))) is not None:
        return value
    denied = next((key.removeprefix(each) for each in _DENIALS if key.startswith(each)), "")
    if denied and (entry := typed_entry(denied)) is not None and entry[2].is_flag and entry[2].takes("false"):
        statement, rank, synonym = entry
        return statement, rank, Synonym(key, TYPED, {"true": synonym.read("false")})
    return None


def _words(key: str) -> frozenset[str]:
    """Return the words of a folded name that tell options apart, in one form."""
    fillers, forms = _vocabulary()
    return frozenset(forms.get(word, word) for word in key.replace(".", "_").split("_")) - fillers


@cache
def _vocabulary() -> tuple[frozenset[str], Mapping[str, str]]:
    """Return the words that do not tell two options apart, and one form for words that mean the same."""
    data = tomllib.loads((files("paceline.questions") / "typed_words.toml").read_text(encoding="utf-8"))
    return frozenset(data["fillers"]), data["forms"]


@cache
def _by_words() -> Mapping[frozenset[str], Entry]:
    """Return the statements by the words of their names, those that only people type first. Words of several are left out."""
    found: dict[frozenset[str], list[Entry]] = {}
    for name, entry in typed_names().items():
        if words := _words(name):
            found.setdefault(words, []).append(entry)
    chosen = {words: [e for e in entries if not e[2].tools] or entries for words, entries in found.items()}
    return {words: entries[0] for words, entries in chosen.items() if len({entry[0] for entry in entries}) == 1}


@cache
def _bare_values() -> Mapping[str, Entry]:
    """Return the values that may be typed as options, such as ``--nvfp4``, and frameworks. Values of several choices are left
    out."""
    values: dict[str, list[tuple[str, str]]] = {}
    for name, item in CHOICES.items():
        aliases = item.values.aliases.items() if isinstance(item.values, Name) and item.option else ()
        names = item.values.names if aliases or isinstance(item.values, Name) else ()
        for word, meant in (*((str(each), each) for each in names), *aliases):
            values.setdefault(fold(word), []).append((name, str(meant)))
    for name in FRAMEWORKS:
        values.setdefault(fold(name), []).append(("framework", name))
    return {
        word: (meanings[0][0], 0, Synonym(word, TYPED, {"true": meanings[0][1]}))
        for word, meanings in values.items()
        if len({name for name, _ in meanings}) == 1 and word not in _OPTIONS_ONLY and not word.isdecimal()
    }
