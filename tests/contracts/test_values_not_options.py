"""Only ``paceline.cli`` knows argparse: every other package receives values, never parsed options."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import paceline

SRC = Path(paceline.__file__).parent


def knows_options(source: str) -> bool:
    """Whether a module imports argparse, or a function of it takes a Namespace."""
    if not re.search(r"argparse|Namespace|\b(options|o)\b", source):
        return False  # to parse the whole package takes seconds
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(alias.name.partition(".")[0] == "argparse" for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "argparse":
            return True
        if isinstance(node, ast.arguments) and any(map(is_namespace, [*node.posonlyargs, *node.args, *node.kwonlyargs])):
            return True
    return False


def is_namespace(argument: ast.arg) -> bool:
    """Whether an argument is a Namespace, by its type or, where its type says nothing, by its name."""
    annotation = ast.unparse(argument.annotation) if argument.annotation else "Any"
    return "Namespace" in annotation or (argument.arg in ("options", "o") and annotation in ("Any", "object"))


def test_only_the_command_line_knows_argparse() -> None:
    files = [path for path in SRC.rglob("*.py") if path.relative_to(SRC).parts[0] != "cli"]
    assert len(files) > 100
    assert [str(path.relative_to(SRC)) for path in files if knows_options(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("source", "knows"),
    [
        ("import argparse", True),
        ("from argparse import ArgumentParser", True),
        ("def f(): import argparse", True),
        ("def f(given: argparse.Namespace) -> None: ...", True),
        ("def f(options: Any) -> None: ...", True),
        ("def f(*, options=None): ...", True),
        ("def f(options: Mapping[str, float]) -> None: ...", False),
        ("def f(**options: Any) -> None: ...", False),
        ("def f(value: Any) -> None: ...", False),
    ],
)
def test_the_search_sees_every_form(source: str, knows: bool) -> None:
    assert knows_options(source) is knows
