"""A class name stands for one class in the whole package, private classes included."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Set
from pathlib import Path

import paceline

SRC = Path(paceline.__file__).parent
REPEATED = {
    "Choice",
}
"""Names that still stand for several classes. Only fewer may follow."""


def classes(source: str) -> list[str]:
    """Names of the classes that a file defines at any depth."""
    return [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]


def repeated(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Files by class name, for the names that are defined more than once."""
    files: dict[str, list[str]] = {}
    for file, source in sources.items():
        for name in classes(source):
            files.setdefault(name, []).append(file)
    return {name: found for name, found in files.items() if len(found) > 1}


def new_repeats(sources: Mapping[str, str], allowed: Set[str]) -> dict[str, list[str]]:
    """Repeated names that are not allowed."""
    return {name: files for name, files in repeated(sources).items() if name not in allowed}


def test_a_class_name_stands_for_one_class() -> None:
    sources = {str(path.relative_to(SRC)): path.read_text(encoding="utf-8") for path in SRC.rglob("*.py")}
    assert new_repeats(sources, REPEATED) == {}


def test_a_repeated_name_is_seen() -> None:
    sources = {"a.py": "class Run: ...", "b.py": "def f():\n    class Run: ...", "c.py": "class Other: ..."}
    assert new_repeats(sources, set()) == {"Run": ["a.py", "b.py"]}
    assert new_repeats(sources, {"Run"}) == {}
