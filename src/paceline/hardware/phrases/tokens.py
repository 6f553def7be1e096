"""Tokens of a phrase about machines: counts, sizes, speeds, signs and words, each with its place in the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from paceline.hardware.catalogue import load

Kind = Literal["count", "sizes", "size", "speed", "times", "colon", "comma", "sign", "open", "close", "word"]
_SIGNS: Mapping[str, Kind] = {"x": "times", "*": "times", ":": "colon", "=": "colon", ",": "comma", ";": "comma"}
_TOKEN = re.compile(
    r"(?P<sizes>(?:(?<![\w.])\d{1,9}(?:\+\d{1,9})+|^\d{1,9}(?:\s*\+\s*\d{1,9})+)(?![\w.]))"
    r"|(?P<speed>(?<![\w.])(?:\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)\s*(?:[KMGT](?:b/s|bps|bit/s|bits/s|B/s)|Gb?E|GigE|gig(?:abits?)?(?:/s)?)(?![\w/]))"
    r"|(?P<size>(?<![\w.])(?:\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)\s*(?:GiB|GB|G|T|TB)(?![\w/]))"
    r"|(?P<times>(?<![\w.])[x×](?=[\s\d(])|[×*])"
    r"|(?P<count>(?<![\w.])\d{1,18}(?![\w.]))"
    r"|(?P<colon>[:=])|(?P<comma>[,;，])|(?P<open>[(\[{<])|(?P<close>[)\]}>])|(?P<sign>[+/@&|!?#\"'`®™_~-])"
    r"|(?P<word>[^\s,;，:=*×()\[\]{}<>+/@&|!?#\"'`®™_~-]+)",
    re.IGNORECASE,
)
_LED = re.compile(r"(?<![A-Za-z0-9.])(\d+)x(?=[A-Za-z0-9() ,]|$)", re.IGNORECASE)
"""``8x`` before a name or another number, which is set apart: ``8xH100``, ``2x8x``."""
_TIMES = re.compile(r"(?<![A-Za-z0-9.])x(?=\d)", re.IGNORECASE)
_UNIT = re.compile(r"(?<![\w.])(\d+)(ea|pcs|gpus?|nodes?|cards?|devices?|chips?)\b", re.IGNORECASE)
_TAIL = re.compile(r"(.*?[A-Za-z0-9])x(\d{1,6})", re.IGNORECASE)
_GLUED = re.compile(r"(\d{1,4})([A-Za-z].*)")


@dataclass(frozen=True, slots=True)
class Token:
    """Part of a phrase. ``folded``: its text in small letters; ``start``, ``end``: its place."""

    kind: Kind
    text: str
    start: int
    end: int

    @property
    def folded(self) -> str:
        """The text without its case."""
        return self.text.casefold()

    @property
    def number(self) -> int:
        """The count."""
        return int(self.text)


def spaced(text: str) -> str:
    """Set counts apart from what follows them: ``8xH100`` is ``8 x H100``, ``8EA`` is ``8 EA``."""
    before, text = "", _TIMES.sub("x ", text.replace("_", " "))
    while before != text:
        before, text = text, _LED.sub(r"\1 x ", text)
    return " ".join(_UNIT.sub(r"\1 \2", text).split())


def tokens(text: str, known: Callable[[str], bool]) -> list[Token]:
    """Split a text that ``spaced`` returned. ``known``: whether a word is a name as it is, so that ``a100x8`` is divided and
    ``MI300X`` is not."""
    return list(_tokens(text, known))


def _tokens(text: str, known: Callable[[str], bool]) -> Iterator[Token]:
    for found in _TOKEN.finditer(text):
        kind: Any = found.lastgroup
        said, start, end = found[0], found.start(), found.end()
        if kind != "word" or known(said):
            yield Token(kind, said, start, end)
        elif said.casefold() in vocabulary().numbers:
            yield Token("count", str(vocabulary().numbers[said.casefold()]), start, end)
        elif (tail := _TAIL.fullmatch(said)) and known(tail[1]):
            yield Token("word", tail[1], start, start + tail.end(1))
            yield Token("times", "x", start + tail.end(1), start + tail.start(2))
            yield Token("count", tail[2], start + tail.start(2), end)
        elif (glued := _GLUED.fullmatch(said)) and known(glued[2]):
            yield Token("count", glued[1], start, start + glued.end(1))
            yield Token("word", glued[2], start + glued.start(2), end)
        else:
            yield Token("word", said, start, end)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words around names by what they mean (``words.toml``)."""

    classes: Mapping[str, frozenset[str]]
    numbers: Mapping[str, int]
    ports: Mapping[str, str]
    carriers: Mapping[str, str]

    def of(self, token: Token, *kinds: str) -> bool:
        """Return whether a token is a word of one of these classes."""
        return any(token.folded in self.classes[kind] for kind in kinds)


@cache
def vocabulary() -> Vocabulary:
    """Return the vocabulary, read at the first use."""
    data = load("phrases/words.toml")
    classes = {name: frozenset(words) for name, words in data.items() if isinstance(words, list)}
    return Vocabulary(classes, data["numbers"], data["ports"], data["carriers"])
