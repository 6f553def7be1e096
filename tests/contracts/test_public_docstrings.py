"""What is public says what it is, and the names that the package offers are there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import paceline

SRC = Path(paceline.__file__).parent
INHERITED = frozenset({"forward", "elaborate"})
"""Described by torch, and by Amaranth."""
FILES = sorted(SRC.rglob("*.py"))
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public(body: list[ast.stmt], owner: str = "", described: frozenset[str] = frozenset()) -> Iterator[tuple[str, Definition]]:
    """Public functions, classes and their public methods; a method that a documented protocol has is described there."""
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_") and node.name not in described:
            if not any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list):
                yield f"{owner}{node.name}", node
            if isinstance(node, ast.ClassDef) and "Protocol" not in {ast.unparse(base) for base in node.bases}:
                yield from public(node.body, f"{node.name}.", described)


def protocol_methods(tree: ast.Module) -> frozenset[str]:
    """Methods that a protocol of the same file describes once for all its classes."""
    protocols = [n for n in tree.body if isinstance(n, ast.ClassDef) and "Protocol" in {ast.unparse(b) for b in n.bases}]
    methods = [m for p in protocols for m in p.body if isinstance(m, ast.FunctionDef) and ast.get_docstring(m)]
    return frozenset(m.name for m in methods)


def undescribed(source: str, path: Path) -> list[str]:
    """What lacks a docstring: public names, or the file itself."""
    tree = ast.parse(source)
    names = public(tree.body, described=protocol_methods(tree) | INHERITED)
    missing = [f"{path}: {name}" for name, node in names if not ast.get_docstring(node)]
    return [*missing, *([f"{path}: the file"] if tree.body and not ast.get_docstring(tree) else [])]


def test_every_public_name_has_a_docstring() -> None:
    assert [gap for path in FILES for gap in undescribed(path.read_text(encoding="utf-8"), path.relative_to(SRC))] == []


def test_a_missing_docstring_is_seen() -> None:
    source = "class A:\n    def b(self): ...\n    def _c(self): ...\ndef d(): 'D.'"
    assert undescribed(source, Path("a.py")) == ["a.py: A", "a.py: A.b", "a.py: the file"]
    assert undescribed("", Path("a.py")) == []


def test_public_names_resolve() -> None:
    for name in paceline.__all__:
        value = getattr(paceline, name)
        assert callable(value) and value.__doc__, name


def test_no_public_name_is_a_modules_too() -> None:
    """Importing ``paceline.x`` sets the attribute ``x``: a function of that name would come or go by import order."""
    assert set(paceline.__all__) & {path.stem if path.suffix else path.name for path in SRC.iterdir()} == set()


def test_the_public_names_are_the_documented_ones() -> None:
    assert list(paceline.__all__) == sorted(paceline.__all__)
    assert set(paceline.__all__) == set(paceline._HOME) and set(paceline.__all__) <= set(dir(paceline))
    with pytest.raises(AttributeError, match="no attribute 'pln'"):
        _ = paceline.pln
