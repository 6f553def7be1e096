"""Names as people type them: one folding for every look-up, the nearest legal names, and which of them say the contrary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

_SEPARATORS = re.compile(r"[\s_-]+")
_NUMBER = re.compile(r"[0-9]+")
_WORDS = ("no", "non", "not", "without", "disable", "disabled", "skip")
_BEGINNINGS = ("dis", "un", "a")
"""With the words, what turns a name into its contrary: ``no-compile``, ``disable-compile``, ``async``."""
_NEAR, _SAME = 0.5, 0.8  # likeness of two names, 1 where they are equal: worth naming, a slip apart
NO_ALIASES: Mapping[str, str] = MappingProxyType({})


def fold(name: str) -> str:
    """``name`` as look-ups compare it: without case, spaces, dashes and underscores. Dots are part of numbers and stay."""
    return _SEPARATORS.sub("", name.casefold())


def look_up(name: str, legal: Iterable[str], aliases: Mapping[str, str] = NO_ALIASES) -> str | None:
    """The legal name that ``name`` folds to, itself or by an alias (``aliases``: legal name by alias); None for no such."""
    meanings = {fold(alias): meaning for alias, meaning in aliases.items()} | {fold(entry): entry for entry in legal}
    return meanings.get(fold(name))


def did_you_mean(given: str, legal: Iterable[str], limit: int = 3) -> list[str]:
    """The legal names nearest to ``given``, nearest first; never empty while ``legal`` is not.

    A name that negates what was given is left out while there is another: ``--no-compile`` does not mean ``--compile``.
    """
    import difflib  # only once something went wrong

    listed = list(legal)
    names = [name for name in listed if not negates(given, name)] or listed
    by_fold = {name.casefold(): name for name in names}
    folded = given.casefold()
    near = [by_fold[m] for m in difflib.get_close_matches(folded, by_fold, n=limit, cutoff=_NEAR)]
    near += [n for n in names if folded and folded in n.casefold() and n not in near]
    if not near:
        near = [by_fold[m] for m in difflib.get_close_matches(folded, by_fold, n=limit, cutoff=0.0)]
    return near[:limit]


def is_likely(given: str, name: str) -> bool:
    """Whether ``name`` may be proposed for ``given``, as a slip of the keyboard: near, no contrary, and no other number.

    ``fp61`` may be ``fp16``; ``fp8`` is not ``fp32``, and ``H20`` is not ``H200``.
    """
    import difflib

    if negates(given, name) or _other_number(given, name):
        return False
    typed, legal = fold(given), fold(name)
    return bool(typed) and (typed in legal or difflib.SequenceMatcher(None, typed, legal).ratio() >= _NEAR)


def negates(one: str, other: str) -> bool:
    """Whether one of two names says that the other shall not be."""
    return _denies(one, other) or _denies(other, one)


def _denies(negative: str, plain: str) -> bool:
    """Whether ``negative`` is a negation and what ``plain`` says, or nearly."""
    import difflib

    said = fold(plain)
    first, *rest = [word for word in _SEPARATORS.split(negative.casefold()) if word] or [""]
    if first in _WORDS and rest and not said.startswith(first):
        return difflib.SequenceMatcher(None, "".join(rest), said).ratio() >= _SAME
    whole = fold(negative)
    return bool(said) and whole.endswith(said) and whole[: -len(said)] in (*_WORDS, *_BEGINNINGS)


def _other_number(one: str, other: str) -> bool:
    """Whether two names differ in their numbers alone, and not by the order of digits."""
    if _NUMBER.sub("0", fold(one)) != _NUMBER.sub("0", fold(other)):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return any(sorted(first) != sorted(second) for first, second in pairs)
