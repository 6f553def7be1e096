"""A class name stands for one class in the whole package, private classes included."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import paceline
from source_statements import statements

SRC = Path(paceline.__file__).parent


def classes(source: str) -> list[str]:
    """Names of the classes that a file defines at any depth."""
    return [node.name for node in statements(source) if isinstance(node, ast.ClassDef)]


def repeated(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Files by class name, for the names that are defined more than once."""
    files: dict[str, list[str]] = {}
    for file, source in sources.items():
        for name in classes(source):
            files.setdefault(name, []).append(file)
    return {name: found for name, found in files.items() if len(found) > 1}


def test_a_class_name_stands_for_one_class() -> None:
    sources = {str(path.relative_to(SRC)): path.read_text(encoding="utf-8") for path in SRC.rglob("*.py")}
    assert repeated(sources) == {}


def test_a_repeated_name_is_seen() -> None:
    sources = {"a.py": "class Run: ...", "b.py": "def f():\n    class Run: ...", "c.py": "class Other: ..."}
    assert repeated(sources) == {"Run": ["a.py", "b.py"]}
