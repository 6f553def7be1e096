"""The check for plain language finds each kind of sentence, and its ceilings only fall."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from contracts import plain_language


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("Of two steps: by their micro batches", "no subject"),
        ("Whether its devices are free", "no subject"),
        ("What holds a step back?", None),
        ("Only then is the file written", "inverted"),
        ("The result is put beside the others", "worn word 'beside'"),
        ("Each device has a link of its own", "worn word 'of its own'"),
        ("Return whether its devices are free", None),
    ],
)
def test_a_sentence_breaks_its_rule(sentence: str, rule: str | None) -> None:
    assert plain_language.rule_broken(sentence) == rule


def test_only_a_page_has_a_longest_sentence() -> None:
    sentence = "word " * 31
    assert plain_language.rule_broken(sentence, page=True) and not plain_language.rule_broken(sentence)


def test_prose_is_read_from_code_and_pages(tmp_path: Path) -> None:
    code, page = tmp_path / "code.py", tmp_path / "page.md"
    code.write_text('"""That of a step."""\nx = f"{y} teaches nothing about it"  # Nobody reads this\nz = "anew"\n')
    page.write_text("# Of two\n\n```text\nanew\n```\n\n| anew | a |\n")
    assert [(f.line, f.rule.split()[0]) for f in plain_language.findings(code)] == [(1, "no"), (2, "worn"), (2, "worn")]
    assert [f.line for f in plain_language.findings(page)] == [1]


def test_ceilings_fall_and_go() -> None:
    ceilings = {"a": 9, "b": 5, "c": 5, "gone": 3}
    counts = {"a": (12, 1000), "b": (4, 1000), "c": (1, 1000)}
    assert plain_language.lowered(ceilings, counts) == {"a": 9, "b": 4}


def test_each_ceiling_is_a_packages() -> None:
    assert tomllib.loads(plain_language.CEILINGS.read_text()).keys() <= plain_language.packages().keys()
