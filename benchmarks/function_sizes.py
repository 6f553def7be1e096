"""The longest functions and those with the most arguments, of one or several checkouts side by side.

    python benchmarks/function_sizes.py OLD .

Lines are from ``def`` to the last one, docstring included; beside them those without it. ``self`` and ``cls`` are no arguments;
``*args`` and ``**kwargs`` are one each.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Function:
    """Where a function stands, how long it is and how much it takes; ``docstring``: its lines of that."""

    place: str
    lines: int
    docstring: int
    arguments: int


def functions(tree: Path) -> list[Function]:
    """Every function and method of the package below ``tree``, also those within others."""
    package = tree / "src" / "paceline"
    listed = [
        Function(f"{path.relative_to(package)}: {name}", _lines(node), _docstring(node), _arguments(node))
        for path in sorted(package.rglob("*.py"))
        for name, node in _within(ast.parse(path.read_text(encoding="utf-8")), "")
    ]
    if not listed:
        raise SystemExit(f"no function below {package}; give a checkout of Paceline")
    return listed


def _within(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        name = f"{prefix}{child.name}" if named else prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, child
        yield from _within(child, f"{name}." if named else prefix)


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _docstring(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return _lines(node.body[0]) if ast.get_docstring(node, clean=False) is not None else 0


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    own = bool(named) and named[0].arg in ("self", "cls")
    return len(named) - own + (node.args.vararg is not None) + (node.args.kwarg is not None)


def table(trees: list[Path], title: str, size: Callable[[Function], tuple[int, ...]], count: int) -> str:
    """The largest of each checkout, a column for each, by the first of their sizes."""
    columns = []
    for tree in trees:
        most = sorted(functions(tree), key=size, reverse=True)[:count]
        rows = [str(tree), *(f"{_columns(size(function))}  {function.place}" for function in most)]
        columns.append([row.ljust(max(map(len, rows))) for row in rows])
    return "\n".join([title, *("   ".join(row).rstrip() for row in zip(*columns, strict=True))])


def _columns(sizes: tuple[int, ...]) -> str:
    return "".join(f"{size:>4}" for size in sizes)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", metavar="CHECKOUT", type=Path, nargs="+")
    parser.add_argument("--count", type=int, default=10)
    o = parser.parse_args()
    longest = table(
        o.trees, "longest functions: lines, and without docstring", lambda f: (f.lines, f.lines - f.docstring), o.count
    )
    print(longest, end="\n\n")
    print(table(o.trees, "most arguments", lambda f: (f.arguments,), o.count))


if __name__ == "__main__":
    main()
