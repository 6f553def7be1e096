"""A test that skips says what would run it: each reason begins with ``needs``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SKIPS = {"skip": 0, "skipif": 1, "importorskip": None}
"""Calls that skip, and the place of the reason among their arguments."""


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield each call that may skip."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SKIPS:
            owner = ast.unparse(node.func.value)
            if owner in ("pytest", "pytest.mark"):
                yield node.func.attr, node


def reason_of(name: str, call: ast.Call) -> ast.expr | None:
    """Return the expression of the reason, or None where there is none."""
    if named := [keyword.value for keyword in call.keywords if keyword.arg == "reason"]:
        return named[0]
    place = SKIPS[name]
    return call.args[place] if name == "skip" and place is not None and call.args else None


def beginning(reason: ast.expr) -> str | None:
    """Return the literal words with which a reason begins, None where a variable holds them."""
    if isinstance(reason, ast.JoinedStr):
        return beginning(reason.values[0])
    return reason.value if isinstance(reason, ast.Constant) and isinstance(reason.value, str) else None


@pytest.mark.parametrize(
    ("line", "good"),
    [
        ("pytest.skip('needs g++: apt-get install g++')", True),
        ("pytest.skip(f'needs {x}')", True),
        ("pytest.mark.skipif(x, reason='no GPU')", False),
        ("pytest.mark.skipif(x)", False),
        ("pytest.importorskip('torch')", False),
        ("pytest.skip(MISSING)", True),
    ],
)
def test_the_check_finds_reasons(line: str, good: bool) -> None:
    assert (faults(ast.parse(line)) == []) is good


def faults(tree: ast.AST) -> list[int]:
    """Return the lines of skips that do not say what would run them."""
    lines = []
    for name, call in calls(tree):
        reason = reason_of(name, call)
        words = beginning(reason) if reason is not None else ""
        if words is not None and not words.startswith("needs "):
            lines.append(call.lineno)
    return lines


def test_every_skip_says_what_would_run_it() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if "skip" in (source := path.read_text())
        for line in faults(ast.parse(source))
    ]
    assert not found, "a reason begins with 'needs': " + ", ".join(found)
