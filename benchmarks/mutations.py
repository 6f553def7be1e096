"""Break the package in thirty places and see whether the tests of each place go red: those of every day, and all of them.

    python benchmarks/mutations.py [--places 30] [--seed 1] [--before OLD] [--out benchmarks/results/mutations.csv]

Places are drawn at random, package after package: a comparison turned round, a sum made a difference, `and` made `or`.
Each is written into the package, its module's own tests run, and the file is restored. Nothing else may use the tree then.

OLD is a checkout of an earlier commit with a .venv of its own. Only places that are in both are drawn then: the same line of a
function of the same name. Each is broken in both, and the tests of every day run in both.
"""

from __future__ import annotations

import argparse
import ast
import csv
import os
import platform
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
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
COLUMNS = ("file", "line", "was", "is", "tests", "before", "everyday", "all", "commit_before", "commit", "date", "python")


class Place(NamedTuple):
    """Position of an expression, whatever the file: its function's name, its line without indent, itself."""

    function: str
    line: str
    was: str


class Mutation(NamedTuple):
    """One change of one expression."""

    file: Path
    line: int
    place: Place
    new: str
    source: str


class Tree(NamedTuple):
    """A checkout."""

    root: Path

    @property
    def package(self) -> Path:
        """Return the folder of the package."""
        return self.root / "src" / "paceline"

    @property
    def commit(self) -> str:
        """Return the short name of its commit."""
        command = ["git", "rev-parse", "--short=8", "HEAD"]
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True).stdout.strip()

    def tests_of(self, module: Path) -> list[Path]:
        """Return the test files with the name of a module, in the folder of its package or the one above."""
        package, tests = module.relative_to(self.package).parent, self.root / "tests"
        name = f"test_{module.stem}"
        found = [path for folder in (package, package.parent) for path in sorted((tests / folder).glob(f"{name}*.py"))]
        return [path for path in dict.fromkeys(found) if path.stem == name or path.parent == tests / package]

    def places(self) -> dict[Place, Mutation]:
        """Return each change of a module that has tests, but for those whose place is there twice."""
        found: dict[Place, list[Mutation]] = {}
        for file in sorted(self.package.rglob("*.py")):
            if self.tests_of(file):
                for change in mutations(file):
                    found.setdefault(change.place, []).append(change)
        return {place: changes[0] for place, changes in found.items() if len(changes) == 1}

    def red(self, change: Mutation, marks: list[str], timeout: float) -> bool:
        """Return whether any test of a changed module fails, or does not end."""
        text = change.file.read_text()
        python = self.root / ".venv" / "bin" / "python"
        command = [str(python if python.exists() else sys.executable), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        try:
            change.file.write_text(change.source)
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            command += [*marks, *map(str, self.tests_of(change.file))]
            done = subprocess.run(command, cwd=self.root, capture_output=True, timeout=timeout, env=environment)
        except subprocess.TimeoutExpired:
            return True
        finally:
            change.file.write_text(text)
        return done.returncode not in (0, 5)


def mutations(file: Path) -> Iterator[Mutation]:
    """Yield each change of a module's functions."""
    text = file.read_text()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    within = {id(n): (n, function.name) for function in functions for part in function.body for n in ast.walk(part)}
    for node, function in within.values():
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
        yield Mutation(file, node.lineno, Place(function, line.decode().strip(), was), new, "".join(lines))


def draw(places: Iterable[Mutation], package: Path, number: int, seed: int) -> list[Mutation]:
    """Draw mutations, one package after another, of a module of each."""
    chance = random.Random(seed)
    packages: dict[str, dict[Path, list[Mutation]]] = {}
    for change in places:
        name = "".join(change.file.relative_to(package).parts[:-1][:1])  # modules of no package are one
        packages.setdefault(name, {}).setdefault(change.file, []).append(change)
    order = sorted(packages)
    chance.shuffle(order)
    drawn: list[Mutation] = []
    while len(drawn) < number:
        for name in order:
            modules = packages[name]
            drawn.append(chance.choice(modules[chance.choice(sorted(modules))]))
    return drawn[:number]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--before", type=Path, help="another checkout, broken in the same places")
    parser.add_argument("--timeout", type=float, default=600, help="seconds of one run of tests; beyond, they count as red")
    parser.add_argument("--out", type=Path, default=Path("mutations.csv"))
    options = parser.parse_args()
    now, before = Tree(ROOT), Tree(options.before.resolve()) if options.before else None
    places = now.places()
    earlier = before.places() if before else {}
    both = [change for place, change in places.items() if before is None or place in earlier]
    commits = (before.commit if before else "", now.commit, f"{datetime.now(UTC):%Y-%m-%d}", platform.python_version())
    with options.out.open("w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS)
        rows.writeheader()
        for change in draw(both, now.package, options.places, options.seed):
            was = before.red(earlier[change.place], [], options.timeout) if before else ""
            everyday = now.red(change, [], options.timeout)
            every = everyday or now.red(change, ["-m", ""], options.timeout)
            names = " ".join(path.name for path in now.tests_of(change.file))
            name = str(change.file.relative_to(now.package))
            told = (name, change.line, change.place.was, change.new, names, was, everyday, every, *commits)
            rows.writerow(dict(zip(COLUMNS, told, strict=True)))
            file.flush()
            reds = f"before {was}, everyday {everyday}, all {every}"
            print(f"{name}:{change.line}: {change.place.was} -> {change.new}: {reds}", flush=True)


if __name__ == "__main__":
    main()
