"""Break the package in thirty places and see whether the tests of each place go red: those of every day, and all of them.

    python benchmarks/mutations.py [--places 30] [--seed 1] [--out mutations.csv]

Places are drawn at random, package after package: a comparison turned round, a sum made a difference, `and` made `or`.
Each is written into src/paceline, its module's own tests run, and the file is restored. Nothing else may use the tree then.
"""

from __future__ import annotations

import argparse
import ast
import csv
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SRC, TESTS = ROOT / "src" / "paceline", ROOT / "tests"
OTHER: dict[type, ast.AST] = {
    ast.Lt: ast.GtE(),
    ast.GtE: ast.Lt(),
    ast.Gt: ast.LtE(),
    ast.LtE: ast.Gt(),
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Add(),
    ast.Div: ast.Mult(),
    ast.FloorDiv: ast.Mult(),
    ast.And: ast.Or(),
    ast.Or: ast.And(),
}
COLUMNS = ("file", "line", "was", "is", "tests", "everyday", "all")


class Mutation(NamedTuple):
    """One change of one expression."""

    file: Path
    line: int
    was: str
    new: str
    source: str


def tests_of(module: Path) -> list[Path]:
    """Return the test files with the name of a module, in the folder of its package or the one above."""
    package = module.relative_to(SRC).parent
    found = [path for folder in (package, package.parent) for path in sorted((TESTS / folder).glob(f"test_{module.stem}*.py"))]
    return [path for path in dict.fromkeys(found) if path.stem == f"test_{module.stem}" or path.parent == TESTS / package]


def mutations(file: Path) -> Iterator[Mutation]:
    """Yield each change of a module's functions."""
    text = file.read_text()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    for node in {id(n): n for function in functions for part in function.body for n in ast.walk(part)}.values():
        if not isinstance(node, ast.Compare | ast.BinOp | ast.BoolOp) or node.lineno != node.end_lineno:
            continue
        operator = node.ops[0] if isinstance(node, ast.Compare) else node.op
        if type(operator) not in OTHER or (isinstance(node, ast.Compare) and len(node.ops) > 1):
            continue
        was = ast.get_source_segment(text, node) or ""
        if "|" in was or '"' in was:  # types and texts
            continue
        changed = ast.parse(was, mode="eval").body
        if isinstance(changed, ast.Compare):
            changed.ops = [OTHER[type(operator)]]  # type: ignore[list-item]
        else:
            changed.op = OTHER[type(operator)]  # type: ignore[attr-defined]
        lines = text.splitlines(keepends=True)
        line = lines[node.lineno - 1].encode()
        new = f"({ast.unparse(changed)})"
        lines[node.lineno - 1] = (line[: node.col_offset] + new.encode() + line[node.end_col_offset :]).decode()
        yield Mutation(file, node.lineno, was, new, "".join(lines))


def draw(places: int, seed: int) -> list[Mutation]:
    """Draw mutations, one package after another."""
    chance = random.Random(seed)
    packages = sorted(path for path in SRC.iterdir() if path.is_dir() and any(path.rglob("*.py")))
    chance.shuffle(packages)
    drawn: list[Mutation] = []
    while len(drawn) < places:
        for package in packages:
            modules = [file for file in sorted(package.rglob("*.py")) if tests_of(file)]
            chance.shuffle(modules)
            if found := next((list(each) for file in modules if (each := list(mutations(file)))), None):
                drawn.append(chance.choice(found))
    return drawn[:places]


def red(tests: list[Path], marks: list[str], timeout: float) -> bool:
    """Return whether any of the tests fails, or does not end."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *marks, *map(str, tests)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, timeout=timeout, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode not in (0, 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600, help="seconds of one run of tests; beyond, they count as red")
    parser.add_argument("--out", type=Path, default=Path("mutations.csv"))
    options = parser.parse_args()
    with options.out.open("w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS)
        rows.writeheader()
        for change in draw(options.places, options.seed):
            tests, text = tests_of(change.file), change.file.read_text()
            try:
                change.file.write_text(change.source)
                everyday = red(tests, [], options.timeout)
                every = everyday or red(tests, ["-m", ""], options.timeout)
            finally:
                change.file.write_text(text)
            names = " ".join(str(path.relative_to(TESTS)) for path in tests)
            name = str(change.file.relative_to(SRC))
            rows.writerow(dict(zip(COLUMNS, (name, change.line, change.was, change.new, names, everyday, every), strict=True)))
            file.flush()
            print(f"{name}:{change.line}: {change.was} -> {change.new}: everyday {everyday}, all {every}", flush=True)


if __name__ == "__main__":
    main()
