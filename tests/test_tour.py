"""The tour names every package and sub-package, and each line of its walks is called by a line above it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import paceline

SRC = Path(paceline.__file__).parent
PAGE = (Path(__file__).parents[1] / "docs/tour.md").read_text(encoding="utf-8")
WALKS = dict(re.findall(r"^\*\*(.+?)\*\*, .*:\n\n((?:\d+\. .*\n)+)", PAGE, re.MULTILINE))


def lines(walk: str) -> list[str]:
    """Dotted names of the functions of a walk."""
    return re.findall(r"^\d+\. `([\w.]+)` -> \S.*$", walk, re.MULTILINE)


def definition(dotted: str) -> ast.AST:
    """Definition of ``module.function`` or ``module.Class.method``; of overloads the last."""
    parts = dotted.split(".")
    for count in range(len(parts) - 1, 0, -1):
        path = SRC.joinpath(*parts[:count]).with_suffix(".py")
        if path.is_file():
            node: ast.AST = ast.parse(path.read_text(encoding="utf-8"))
            for name in parts[count:]:
                node = [each for each in getattr(node, "body", []) if getattr(each, "name", None) == name][-1]
            return node
    raise LookupError(dotted)


def used(node: ast.AST) -> set[str]:
    """Names and attributes that a definition uses."""
    return {n.attr if isinstance(n, ast.Attribute) else n.id for n in ast.walk(node) if isinstance(n, ast.Attribute | ast.Name)}


def unlinked(names: list[str]) -> list[str]:
    """Functions that no function above them uses, by name or as a method of a class that it uses."""
    seen: set[str] = set()
    found = []
    for index, dotted in enumerate(names):
        *_, owner, name = dotted.split(".")
        if index and name not in seen and owner not in seen:
            found.append(dotted)
        seen |= used(definition(dotted))
    return found


def test_there_are_four_walks_of_ten_lines() -> None:
    assert [len(lines(walk)) for walk in WALKS.values()] == [10] * 4
    assert PAGE.count(" -> ") >= 40


@pytest.mark.parametrize("title", WALKS)
def test_each_line_of_a_walk_is_called_by_one_above(title: str) -> None:
    assert unlinked(lines(WALKS[title])) == []


def test_a_walk_through_a_wall_is_seen() -> None:
    assert unlinked(["cli.commands.predict._predict", "cli.commands.plan.add"]) == ["cli.commands.plan.add"]
    with pytest.raises((IndexError, LookupError)):
        unlinked(["cli.commands.predict.nothing"])


def test_every_package_and_sub_package_is_named() -> None:
    packages = {path.parent.relative_to(SRC).parts for path in SRC.rglob("__init__.py")} - {()}
    rows = {match[1]: match[2] for match in re.finditer(r"^\| `(\w+)/` \| (.*?) \|", PAGE, re.MULTILINE)}
    assert rows.keys() == {parts[0] for parts in packages}
    assert [parts for parts in packages if len(parts) > 1 and f"`{parts[-1]}/`" not in rows[parts[0]]] == []
    for module in SRC.glob("[a-z]*.py"):
        assert f"`{module.name}`" in PAGE, module.name
