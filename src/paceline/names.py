"""Look-up of names as people type them: folding, the nearest legal names, and names that negate each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

_SEPARATORS = re.compile(r"[\s_-]+")
_NUMBER = re.compile(r"[0-9]+")
_WORDS = ("no", "non", "not", "without", "disable", "disabled", "skip")
_BEGINNINGS = ("dis", "un")
_WITH_A = re.compile(r"sync|symmetric")  # what an a in front turns into its contrary
"""With the words, what turns a name into its contrary: ``no-compile``, ``disable-compile``, ``async``."""
_PARTS = re.compile(r"[a-z]+|[0-9]+")
_EXCLUSIVE: tuple[frozenset[str], ...] = tuple(
    frozenset(words.split())
    for words in (
        "fp bf tf int mxfp nvfp",  # formats of numbers
        "sxm pcie nvl oam",  # forms of a board
        "sync async synchronous asynchronous",
        "forward backward",
        "first last",
        "strong weak",
        "ordinary tuned",
        "min max",
        "fastest cheapest",
    )
)
"""Words that tell names apart: two names with different ones mean different things, however near their letters."""
_NEAR, _SAME = 0.5, 0.8  # likeness of two names, 1 where they are equal: worth naming, a slip apart
SECTIONS: Mapping[str, str] = {
    "machines": "the machines",
    "model": "the model",
    "fabric": "network cards and switches",
    "training": "how much is trained",
    "limits": "goal, limits and prices",
    "run": "the run",
    "parallelism": "division of the work",
    "memory": "memory",
    "exchange": "exchange of gradients",
    "local": "local steps between exchanges",
    "software": "software and measured steps",
    "learning": "optimizer and learning rate",
    "jobs": "the jobs",
    "scheduler": "how devices are given out",
    "failures": "failures and checkpoints",
    "changes": "what is compared",
    "sites": "training on several sites",
    "answer": "the answer",
}
"""Title of each section of the help and of the page, by its key."""
NO_ALIASES: Mapping[str, str] = MappingProxyType({})


def fold(name: str) -> str:
    """Fold ``name`` for look-ups, by removing case, spaces, dashes and underscores. Dots are part of numbers and stay."""
    return _SEPARATORS.sub("", name.casefold())


def look_up(name: str, legal: Iterable[str], aliases: Mapping[str, str] = NO_ALIASES) -> str | None:
    """Return the legal name that equals ``name`` after folding, or whose alias in ``aliases`` does; else None."""
    meanings = {fold(alias): meaning for alias, meaning in aliases.items()} | {fold(entry): entry for entry in legal}
    return meanings.get(fold(name))


def did_you_mean(given: str, legal: Iterable[str], limit: int = 3) -> list[str]:
    """Return the legal names nearest to ``given``, nearest first; empty only without legal names.

    A name that negates the given one is left out if there is another: ``--no-compile`` does not mean ``--compile``.
    """
    listed = list(legal)
    return near_names(given, listed, limit) or _nearest(given, listed, limit, 0.0)


def near_names(given: str, legal: Iterable[str], limit: int = 3) -> list[str]:
    """Return the legal names near ``given``, nearest first."""
    listed = list(legal)
    near = _nearest(given, listed, limit, _NEAR)
    folded = given.casefold()
    named = [name for name in listed if folded and folded in name.casefold() and name not in near and not negates(given, name)]
    return [*near, *named][:limit]


def _nearest(given: str, listed: list[str], limit: int, cutoff: float) -> list[str]:
    import difflib  # only once something went wrong

    names = [name for name in listed if not negates(given, name)] or listed
    by_fold = {name.casefold(): name for name in names}
    return [by_fold[m] for m in difflib.get_close_matches(given.casefold(), by_fold, n=limit, cutoff=cutoff)]


def is_likely(given: str, name: str) -> bool:
    """Return whether ``name`` is a likely correction of ``given``: similar, not a negation, with the same numbers.

    ``fp61`` may be ``fp16``; ``fp8`` is not ``fp32``, ``H20`` is not ``H200``, and ``fp16x`` is not ``bf16``.
    """
    if negates(given, name) or _other_number(given, name) or _excludes(given, name):
        return False
    typed, legal = fold(given), fold(name)
    return bool(typed) and (typed in legal or _likeness(given, name) >= _NEAR)


def likeliest(given: str, legal: Iterable[str]) -> str:
    """Return the nearest legal name if it is likely meant and not a negation; else an empty text.

    Ambiguous names get no proposal: ``zero`` may be three shardings and ``fb16`` two formats of numbers.
    """
    near = sorted(did_you_mean(given, legal), key=lambda name: -_likeness(given, name))
    if not near or not is_likely(given, near[0]):
        return ""
    nearest = _likeness(given, near[0])
    others = [name for name in near[1:] if fold(name) != fold(near[0])]
    return "" if any(_likeness(given, name) >= nearest or negates(name, near[0]) for name in others) else near[0]


def _likeness(given: str, name: str) -> float:
    import difflib

    return difflib.SequenceMatcher(None, fold(given), fold(name)).ratio()


def _excludes(one: str, other: str) -> bool:
    """Return whether each name has a word that excludes a word of the other."""
    words, others = (set(_PARTS.findall(name.casefold())) for name in (one, other))
    return any(words & family and others & family and not words & others & family for family in _EXCLUSIVE)


def negates(one: str, other: str) -> bool:
    """Return whether one of two names negates the other."""
    return _denies(one, other) or _denies(other, one)


def _denies(negative: str, plain: str) -> bool:
    """Return whether ``negative`` is a negation of ``plain``, or nearly."""
    said = fold(plain)
    first, *rest = [word for word in _SEPARATORS.split(negative.casefold()) if word] or [""]
    if first in _WORDS and rest and not said.startswith(first):
        import difflib

        likeness = difflib.SequenceMatcher(None, "".join(rest), said).ratio()
        return likeness >= max(_SAME, _likeness(negative, plain))  # else ``plain`` is a slip of the negation itself
    folded = fold(negative)
    if not said or not folded.endswith(said):
        return False
    beginning = folded.removesuffix(said)
    return beginning in _WORDS or beginning in _BEGINNINGS or (beginning == "a" and bool(_WITH_A.match(said)))


def _other_number(one: str, other: str) -> bool:
    """Return whether two names differ only in their numbers, and not by swapped digits."""
    if _NUMBER.sub("0", fold(one)) != _NUMBER.sub("0", fold(other)):
        return False
    pairs = zip(_NUMBER.findall(fold(one)), _NUMBER.findall(fold(other)), strict=True)
    return any(sorted(first) != sorted(second) for first, second in pairs)
