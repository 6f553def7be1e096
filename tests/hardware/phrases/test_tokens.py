"""Tokens of phrases: counts and signs are set apart from names, names stay whole."""

from __future__ import annotations

from each_row import each_row
from paceline.hardware.phrases.machine_names import known_name
from paceline.hardware.phrases.tokens import spaced, tokens, vocabulary


@each_row(
    ("text", "kinds"),
    [
        ("2x8 H100", ["count", "times", "count", "word"]),
        ("a100x8", ["word", "times", "count"]),
        ("8H100", ["count", "word"]),
        ("MI300X", ["word"]),
        ("1+7 A100", ["sizes", "word"]),
        ("A100 80GB", ["word", "size"]),
        ("3,200 Gb/s EFA", ["speed", "word"]),
        ("100GbE", ["speed"]),
        ("{H100: 8}", ["open", "word", "colon", "count", "close"]),
        ("p4d.24xlarge:2", ["word", "colon", "count"]),
        ("dual 3090", ["count", "count"]),
    ],
)
def test_kinds(text: str, kinds: list[str]) -> None:
    assert [token.kind for token in tokens(spaced(text), known_name)] == kinds


def test_no_word_has_two_meanings() -> None:
    words = vocabulary()
    around = [words.classes[name] for name in ("nodes", "devices", "makers", "sellers", "links")]
    assert sum(map(len, around)) == len(frozenset().union(*around))
    assert not words.classes["links"] & words.classes["fillers"]
